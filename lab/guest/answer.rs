//! The guest's program: it answers UDP datagrams.

use std::net::UdpSocket;

fn main() -> std::io::Result<()> {
    let socket = UdpSocket::bind("[::]:7007")?;
    println!("the guest answers");
    let mut buffer = [0; 64];
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        socket.send_to(&buffer[..length], from)?;
    }
}
