//! A stream of messages: framing, OPEN, NOTIFICATION and ROUTE-REFRESH. A decoded message that is
//! encoded and decoded again stays equal.

use trunkline_bgp::wire::{
    Frame, MAX_EXTENDED, MAX_MESSAGE, MessageKind, Notification, Open, RouteRefresh, WireError, frame,
};

/// An octet of context, then the stream.
pub fn run(data: &[u8]) {
    let Some((&octet, mut stream)) = data.split_first() else { return };
    let max = if octet & 0x80 == 0 { MAX_MESSAGE } else { MAX_EXTENDED };
    loop {
        match frame(stream, max) {
            Err(error) => return refused(error.into()),
            Ok(None) => {
                // More octets are needed, and they always fit into a buffer of `max`.
                assert!(stream.len() < max);
                return;
            }
            Ok(Some(message)) => {
                assert!(
                    message.len <= max
                        && message.len <= stream.len()
                        && message.body.len() + 19 == message.len
                );
                for cut in [0, 18, message.len - 1] {
                    assert_eq!(
                        frame(&stream[..cut.min(message.len - 1)], max),
                        Ok(None),
                        "a message cut short"
                    );
                }
                if let Err(error) = read(&message, octet) {
                    refused(error);
                }
                stream = &stream[message.len..];
            }
        }
    }
}

fn refused(error: WireError) {
    let mut out = vec![];
    error.notification().encode(&mut out);
    assert!(!error.to_string().is_empty());
    assert_eq!(read_back(&out, Notification::decode), Some(error.notification()));
}

fn read(message: &Frame<'_>, octet: u8) -> Result<(), WireError> {
    let mut out = vec![];
    match message.kind {
        MessageKind::Open => {
            let open = Open::decode(message.body)?;
            open.encode(&mut out);
            let again = read_back(&out, Open::decode);
            // Capabilities may be too long for one OPEN only if they arrived in an extended one.
            assert_eq!(again.as_ref(), Some(&open));
            open.capabilities.iter().for_each(|capability| assert!(!capability.to_string().is_empty()));
        }
        MessageKind::Notification => {
            let notification = Notification::decode(message.body).map_err(WireError::from)?;
            assert!(!notification.to_string().is_empty());
            if message.len <= MAX_MESSAGE {
                notification.encode(&mut out);
                assert_eq!(read_back(&out, Notification::decode).as_ref(), Some(&notification));
            }
            if let Some(text) = notification.communication() {
                assert!(
                    !text.chars().any(|c| c.is_control()),
                    "control characters of {text:?} \
                    would reach a terminal"
                );
            }
        }
        MessageKind::RouteRefresh => {
            let refresh = RouteRefresh::decode(message.body)?;
            refresh.encode(&mut out);
            assert_eq!(read_back(&out, RouteRefresh::decode).as_ref(), Some(&refresh));
        }
        MessageKind::Update => crate::update::check(message.body, &crate::update::context(octet)),
        MessageKind::Keepalive => assert!(message.body.is_empty()),
    }
    Ok(())
}

fn read_back<T, E>(message: &[u8], decode: fn(&[u8]) -> Result<T, E>) -> Option<T> {
    let frame = frame(message, MAX_EXTENDED).ok()??;
    assert_eq!(frame.len, message.len());
    decode(frame.body).ok()
}
