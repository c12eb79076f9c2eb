//! Splits Rust source into code and comments, line by line, so that rules do not trip over text in strings.

/// One line. Characters inside string and character literals are replaced by `_` in `code`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) code: String,
    pub(super) comment: String,
}

impl Line {
    /// Nothing but a comment, an attribute or white space.
    pub(super) fn is_prelude(&self) -> bool {
        let code = self.code.trim();
        code.is_empty() || code.starts_with("#[") || code.starts_with("#![")
    }
}

/// Where the scanner is.
enum State {
    Code,
    LineComment,
    BlockComment { depth: usize },
    Text { raw_hashes: Option<usize> },
}

pub(super) fn scan(source: &str) -> Vec<Line> {
    let chars: Vec<char> = source.chars().collect();
    let mut lines = vec![Line::default()];
    let mut state = State::Code;
    let mut i = 0;
    while i < chars.len() {
        let rest = &chars[i..];
        if rest[0] == '\n' {
            if matches!(state, State::LineComment) {
                state = State::Code;
            }
            lines.push(Line::default());
            i += 1;
            continue;
        }
        let Some(line) = lines.last_mut() else { break };
        let (next, taken) = step(state, rest, line);
        state = next;
        i += taken;
    }
    lines
}

/// Consumes at least one character of `rest`, never a line break beyond the first character.
fn step(state: State, rest: &[char], line: &mut Line) -> (State, usize) {
    let begins = |text: &str| text.chars().enumerate().all(|(i, c)| rest.get(i) == Some(&c));
    match state {
        State::Code if begins("//") => (State::LineComment, comment(line, rest, 2)),
        State::Code if begins("/*") => (State::BlockComment { depth: 1 }, comment(line, rest, 2)),
        State::Code => code(rest, line),
        State::LineComment => (State::LineComment, comment(line, rest, 1)),
        State::BlockComment { depth } if begins("/*") => {
            (State::BlockComment { depth: depth + 1 }, comment(line, rest, 2))
        }
        State::BlockComment { depth } if begins("*/") => {
            let next = if depth > 1 { State::BlockComment { depth: depth - 1 } } else { State::Code };
            (next, comment(line, rest, 2))
        }
        State::BlockComment { depth } => (State::BlockComment { depth }, comment(line, rest, 1)),
        State::Text { raw_hashes: None } if rest[0] == '\\' && rest.get(1).is_some_and(|c| *c != '\n') => {
            line.code.push_str("__");
            (State::Text { raw_hashes: None }, 2)
        }
        State::Text { raw_hashes } => {
            let hashes = raw_hashes.unwrap_or(0);
            let closes = rest[0] == '"' && (1..=hashes).all(|n| rest.get(n) == Some(&'#'));
            line.code.push(if closes { '"' } else { '_' });
            if closes { (State::Code, 1 + hashes) } else { (State::Text { raw_hashes }, 1) }
        }
    }
}

fn comment(line: &mut Line, rest: &[char], taken: usize) -> usize {
    line.comment.extend(&rest[..taken]);
    taken
}

/// Code up to the beginning of a literal.
fn code(rest: &[char], line: &mut Line) -> (State, usize) {
    let after_name = line.code.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
    if rest[0] == '"' {
        line.code.push('"');
        return (State::Text { raw_hashes: None }, 1);
    }
    if rest[0] == 'r' && (!after_name || line.code.ends_with(['b', 'c'])) {
        let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
        if rest.get(1 + hashes) == Some(&'"') {
            line.code.push_str("r\"");
            return (State::Text { raw_hashes: Some(hashes) }, 2 + hashes);
        }
    }
    if rest[0] == '\'' {
        let length = character(rest);
        line.code.push('\'');
        if length > 1 {
            line.code.push_str("_'");
        }
        return (State::Code, length);
    }
    line.code.push(rest[0]);
    (State::Code, 1)
}

/// Length of the character literal at the beginning, or 1 for the quote of a lifetime.
fn character(rest: &[char]) -> usize {
    match rest {
        ['\'', '\\', _, tail @ ..] => {
            let close = tail.iter().take(12).position(|c| *c == '\'');
            close.map_or(1, |at| at + 4)
        }
        ['\'', _, '\'', ..] => 3,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(source: &str) -> String {
        scan(source).into_iter().map(|l| l.code).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn strings_and_comments_are_no_code() {
        assert_eq!(code_of(r#"a("unsafe") // unsafe"#), r#"a("______") "#);
        assert_eq!(code_of(r#"a("\"x") b"#), r#"a("___") b"#);
        assert_eq!(code_of("a /* b /* c */ d */ e"), "a  e");
        assert_eq!(code_of("r#\"a\"b\"# c"), "r\"___\" c");
        assert_eq!(code_of("br\"a\" c"), "br\"_\" c");
    }

    #[test]
    fn lifetimes_and_characters_are_told_apart() {
        assert_eq!(code_of("x: &'a str, '\"', '\\n', '\\u{1f600}' y"), "x: &'a str, '_', '_', '_' y");
    }

    #[test]
    fn lines_are_kept_apart_in_long_literals() {
        let lines = scan("a \"x\ny\" b // c\nd");
        assert_eq!(lines.len(), 3);
        assert_eq!((lines[1].code.as_str(), lines[1].comment.as_str()), ("_\" b ", "// c"));
        assert_eq!(lines[2].code, "d");
    }

    #[test]
    fn a_name_that_ends_in_r_begins_no_raw_string() {
        assert_eq!(code_of("for\"a\" b"), "for\"_\" b");
    }
}
