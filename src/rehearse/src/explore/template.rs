//! How a command is given a number: `'--batch-size {}'`, `'--batch_size={}'`.

use std::ffi::OsString;
use std::str::FromStr;

const HOLE: &str = "{}";

/// Words of which one has a hole for the number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagTemplate(Vec<String>);

impl FromStr for FlagTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<FlagTemplate, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_string).collect();
        match words.iter().map(|word| word.matches(HOLE).count()).sum::<usize>() {
            1 => Ok(FlagTemplate(words)),
            _ => Err(format!("'{text}' has to have one {{}} where the number goes, as in '--batch-size {{}}'")),
        }
    }
}

impl FlagTemplate {
    /// Of these words, one of which has the hole.
    pub fn of<const N: usize>(words: [&str; N]) -> FlagTemplate {
        FlagTemplate(words.map(str::to_string).to_vec())
    }

    fn filled(&self, number: u64) -> impl Iterator<Item = OsString> {
        self.0.iter().map(move |word| OsString::from(word.replace(HOLE, &number.to_string())))
    }

    /// Where the command has these words, and with which number; the last place counts, as it does for most programs.
    fn place(&self, command: &[OsString]) -> Option<(usize, u64)> {
        let number = |window: &[OsString]| {
            let mut found = None;
            for (word, given) in self.0.iter().zip(window) {
                let given = given.to_str()?;
                match word.split_once(HOLE) {
                    Some((before, after)) => found = given.strip_prefix(before)?.strip_suffix(after)?.parse().ok(),
                    None if word == given => {}
                    None => return None,
                }
            }
            found
        };
        command.windows(self.0.len()).enumerate().rev().find_map(|(at, window)| Some((at, number(window)?)))
    }

    /// The number that a command has now.
    pub fn number(&self, command: &[OsString]) -> Option<u64> {
        self.place(command).map(|(_, number)| number)
    }

    /// The command with another number: in its place, or at the end where it has none.
    pub fn with(&self, command: &[OsString], number: u64) -> Vec<OsString> {
        let mut command = command.to_vec();
        match self.place(&command) {
            Some((at, _)) => drop(command.splice(at..at + self.0.len(), self.filled(number))),
            None => command.extend(self.filled(number)),
        }
        command
    }

    /// As it is typed.
    pub fn text(&self, number: u64) -> String {
        self.filled(number).map(|word| word.to_string_lossy().into_owned()).collect::<Vec<String>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_number_is_replaced_where_it_stands_and_added_where_it_does_not() {
        let (two, one): (FlagTemplate, FlagTemplate) = ("--batch-size {}".parse().unwrap(), "--batch_size={}".parse().unwrap());
        assert_eq!(two.with(&command("python t.py --batch-size 32 --x"), 8), command("python t.py --batch-size 8 --x"));
        assert_eq!(two.with(&command("python t.py"), 8), command("python t.py --batch-size 8"));
        assert_eq!(one.with(&command("python t.py --batch_size=12"), 1), command("python t.py --batch_size=1"));
        assert_eq!(one.number(&command("t --batch_size=12 --batch_size=16")), Some(16));
        assert_eq!(two.number(&command("t --batch-size many")), None);
        assert_eq!(two.text(7), "--batch-size 7");
        for text in ["--batch-size", "{} {}", ""] {
            assert!(text.parse::<FlagTemplate>().unwrap_err().contains("--batch-size {}"), "{text}");
        }
    }
}
