//! Input of the operator: keys, and the window's size.

use std::io;
use std::thread;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use super::LoopEvent;
use super::model::{Action, Tab};

/// An input from the terminal.
pub(super) enum Input {
    Key(KeyEvent),
    /// The size has changed; everything is drawn again.
    Resized,
    Failed(io::Error),
}

/// Starts the thread that reads the terminal. It ends with the process.
pub(super) fn start(sender: mpsc::Sender<LoopEvent>) -> io::Result<()> {
    let read = move || {
        loop {
            let input = match event::read() {
                Ok(Event::Key(key)) => Input::Key(key),
                Ok(Event::Resize(..)) => Input::Resized,
                Ok(_) => continue,
                Err(error) => Input::Failed(error),
            };
            let failed = matches!(input, Input::Failed(_));
            if sender.blocking_send(LoopEvent::Input(input)).is_err() || failed {
                return;
            }
        }
    };
    thread::Builder::new().name("keys".to_owned()).spawn(read).map(drop)
}

/// The action of a key. While a filter is typed, most keys are letters.
pub(super) fn action(key: &KeyEvent, typing: bool) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    let action = match key.code {
        KeyCode::Char('c') if control => Action::Quit,
        KeyCode::Char('u') if control && typing => Action::EraseAll,
        KeyCode::Char('d') if control => Action::PageDown,
        KeyCode::Char('u') if control => Action::PageUp,
        KeyCode::Char(_) if control => return None,
        KeyCode::Enter => Action::Open,
        KeyCode::Esc => Action::Back,
        KeyCode::Backspace if typing => Action::Erase,
        KeyCode::Char(letter) if typing => Action::Type(letter),
        KeyCode::Up => Action::Up,
        KeyCode::Down => Action::Down,
        KeyCode::PageUp => Action::PageUp,
        KeyCode::PageDown => Action::PageDown,
        KeyCode::Home => Action::First,
        KeyCode::End => Action::Last,
        KeyCode::Tab | KeyCode::Right => Action::NextTab,
        KeyCode::BackTab | KeyCode::Left => Action::PreviousTab,
        KeyCode::Backspace => Action::Back,
        KeyCode::Char(letter) => match letter {
            'k' => Action::Up,
            'j' => Action::Down,
            'g' => Action::First,
            'G' => Action::Last,
            ' ' => Action::PageDown,
            'l' => Action::NextTab,
            'h' => Action::PreviousTab,
            '1' => Action::Go(Tab::Peers),
            '2' => Action::Go(Tab::Pods),
            '3' => Action::Go(Tab::Events),
            '4' => Action::Go(Tab::Services),
            '/' => Action::Filter,
            '?' => Action::Help,
            'q' => Action::Quit,
            _ => return None,
        },
        _ => return None,
    };
    Some(action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_letters_while_a_filter_is_typed() {
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        let letter = |letter| key(KeyCode::Char(letter));
        assert_eq!(action(&letter('q'), false), Some(Action::Quit));
        assert_eq!(action(&letter('q'), true), Some(Action::Type('q')));
        assert_eq!(action(&letter('j'), false), Some(Action::Down));
        assert_eq!(action(&key(KeyCode::Down), true), Some(Action::Down));
        assert_eq!(action(&key(KeyCode::Backspace), true), Some(Action::Erase));
        assert_eq!(action(&letter('x'), false), None);
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!([false, true].map(|typing| action(&control, typing)), [Some(Action::Quit); 2]);
        let up = KeyEvent::new_with_kind(KeyCode::Char('q'), KeyModifiers::NONE, KeyEventKind::Release);
        assert_eq!(action(&up, false), None);
    }
}
