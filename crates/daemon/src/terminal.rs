//! Characters that a terminal obeys instead of showing them, which a text of somebody else must not bring there.

/// Whether it is a control character, a separator of lines or paragraphs, or one that changes the direction of the text.
pub fn is_obeyed(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
