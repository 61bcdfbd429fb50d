//! The lexer: words, numbers, strings and signs with their places.

use crate::Diagnostic;

/// A token of the text.
#[derive(Clone, Debug)]
pub(super) struct Token<'t> {
    pub(super) kind: Kind,
    /// The token's text; empty at the end.
    pub(super) text: &'t str,
    pub(super) place: TextPlace,
}

/// The kind of a token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// Letters, digits, `_` and `.`, no digit first.
    Word,
    /// Digits and all characters that can follow in a number: sign, point, exponent, hexadecimal digits.
    Number,
    /// `%12`
    Value(u32),
    /// A string, without its escapes.
    String(String),
    /// A sign of one character.
    Sign(char),
    /// The end of the text.
    End,
}

/// A place in the text. Line and column count from 1; columns count characters.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextPlace {
    line: usize,
    column: usize,
}

impl TextPlace {
    /// Makes an error at this place.
    pub(super) fn error(self, message: impl Into<String>) -> Diagnostic {
        Diagnostic::new(message).at(format!("line {}, column {}", self.line, self.column))
    }
}

impl Token<'_> {
    /// Returns the token as it is shown in an error.
    pub(super) fn describe(&self) -> String {
        const SHOWN: usize = 40;
        match self.text.char_indices().nth(SHOWN) {
            _ if self.kind == Kind::End => "the end of the text".into(),
            Some((end, _)) => format!("`{}…`", &self.text[..end]),
            None => format!("`{}`", self.text),
        }
    }

    /// Makes the error that another token was expected.
    pub(super) fn expected(&self, what: &str) -> Diagnostic {
        self.place.error(format!("expected {what}, found {}", self.describe()))
    }
}

/// Splits a text into tokens; the last one is [`Kind::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, Diagnostic> {
    let mut lexer = Lexer { rest: text, place: TextPlace { line: 1, column: 1 } };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blank();
        let token = lexer.token()?;
        let end = token.kind == Kind::End;
        tokens.push(token);
        if end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'t> {
    rest: &'t str,
    place: TextPlace,
}

impl<'t> Lexer<'t> {
    /// Takes this many bytes, which must end at a character boundary.
    fn take(&mut self, bytes: usize) -> &'t str {
        let (taken, rest) = self.rest.split_at(bytes);
        for c in taken.chars() {
            match c {
                '\n' => self.place = TextPlace { line: self.place.line + 1, column: 1 },
                _ => self.place.column += 1,
            }
        }
        self.rest = rest;
        taken
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) -> &'t str {
        self.take(self.rest.find(|c| !keep(c)).unwrap_or(self.rest.len()))
    }

    fn skip_blank(&mut self) {
        loop {
            self.take_while(char::is_whitespace);
            if !self.rest.starts_with("//") {
                return;
            }
            self.take_while(|c| c != '\n');
        }
    }

    fn token(&mut self) -> Result<Token<'t>, Diagnostic> {
        let (start, place) = (self.rest, self.place);
        let mut next = start.chars();
        let kind = match (next.next(), next.next()) {
            (None, _) => Kind::End,
            (Some(c), _) if c.is_ascii_alphabetic() || c == '_' => {
                self.take_while(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
                Kind::Word
            }
            (Some(c), after)
                if c.is_ascii_digit() || c == '-' && after.is_some_and(|c| c.is_ascii_digit()) =>
            {
                self.number();
                Kind::Number
            }
            (Some('%'), _) => self.value()?,
            (Some('"'), _) => self.string()?,
            (Some(c), _) if "{}[]()=:,*@!-".contains(c) => {
                self.take(1);
                Kind::Sign(c)
            }
            (Some(c), _) => {
                return Err(place.error(format!("`{}` is not part of a program's text", c.escape_debug())));
            }
        };
        Ok(Token { kind, text: &start[..start.len() - self.rest.len()], place })
    }

    /// Takes the characters of a number. The caller checks whether they are a valid number.
    fn number(&mut self) {
        let sign = usize::from(self.rest.starts_with('-'));
        let hexadecimal = self.rest[sign..].starts_with("0x");
        let mut exponent = false;
        let end = self.rest[sign..].find(|c: char| {
            let part = c.is_ascii_alphanumeric() || c == '.' || exponent && (c == '-' || c == '+');
            exponent = !hexadecimal && (c == 'e' || c == 'E');
            !part
        });
        self.take(end.map_or(self.rest.len(), |end| sign + end));
    }

    fn value(&mut self) -> Result<Kind, Diagnostic> {
        let place = self.place;
        self.take(1);
        let digits = self.take_while(|c| c.is_ascii_digit());
        let error = || place.error(format!("expected the number of a value, found `%{digits}`"));
        digits.parse().map(Kind::Value).map_err(|_| error())
    }

    fn string(&mut self) -> Result<Kind, Diagnostic> {
        let open = self.place;
        self.take(1);
        let mut string = String::new();
        loop {
            string.push_str(self.take_while(|c| c != '"' && c != '\\' && c != '\n'));
            match self.rest.chars().next() {
                Some('"') => {
                    self.take(1);
                    return Ok(Kind::String(string));
                }
                Some('\\') => string.push(self.escape()?),
                _ => return Err(open.error("this string has no closing `\"` on its line")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Diagnostic> {
        let place = self.place;
        let error = || place.error("expected one of the escapes \\\" \\\\ \\n \\r \\t \\u{…}");
        self.take(1);
        let c = self.rest.chars().next().ok_or_else(error)?;
        self.take(c.len_utf8());
        Ok(match c {
            '"' | '\\' => c,
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let digits =
                    self.rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).ok_or_else(error)?.0;
                let number = u32::from_str_radix(digits, 16).ok().filter(|_| digits.len() <= 6);
                let c = number.and_then(char::from_u32).ok_or_else(error)?;
                self.take(digits.len() + 2);
                c
            }
            _ => return Err(error()),
        })
    }
}
