//! Which versions of packages are meant: `2.9..2.15`, `2.9.1,2.11.0`.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A package in one version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema, Deserialize)]
pub struct Pin {
    pub package: String,
    pub version: String,
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}=={}", self.package, self.version)
    }
}

/// A package, and which of its versions are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub package: String,
    pub versions: String,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        let (package, versions) = text.split_once('=').unwrap_or_default();
        // It becomes a word of pip's command line.
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphanumeric())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.[],".contains(c))
        };
        match is_name(package) && !versions.is_empty() {
            true => Ok(Wanted { package: package.to_string(), versions: versions.trim_start_matches('=').to_string() }),
            false => Err(format!("'{text}' is no package with versions; write it like transformers=4.50..4.57")),
        }
    }
}

/// The numbers of a release, `4.57.0.post1` as 4, 57, 0, 1; none of what comes before one, as `2.0rc1`.
pub fn numbers(version: &str) -> Option<Vec<u64>> {
    let version = version.split('+').next()?;
    version.split('.').map(|part| part.trim_start_matches("post").parse().ok()).collect()
}

fn begins_with(version: &[u64], start: &[u64]) -> bool {
    version.len() >= start.len() && version[..start.len()] == *start
}

impl Wanted {
    /// Those of the releases that are meant, the oldest first. Of a range whose ends have two numbers the newest release of each such pair,
    /// of one whose ends have three every release; a version by itself is taken as it is, or as the newest that begins like it.
    ///
    /// # Errors
    /// It is none, or nothing of it was released.
    pub fn choose(&self, released: &[String]) -> Result<Vec<Pin>> {
        let mut known: Vec<(Vec<u64>, &String)> = released.iter().filter_map(|name| Some((numbers(name)?, name))).collect();
        known.sort();
        let package = &self.package;
        let read = |text: &str| {
            numbers(text)
                .with_context(|| format!("'{text}' is no version of {package}; write it like 2.9.1, 2.9.1,2.11.0 or 2.9..2.15"))
        };
        let listed = || {
            let newest: Vec<&str> = known.iter().rev().take(8).map(|(_, name)| name.as_str()).collect();
            format!("the newest are {}", newest.join(", "))
        };
        let mut chosen: Vec<(Vec<u64>, &String)> = Vec::new();
        for part in self.versions.split(',').map(str::trim) {
            let found: Vec<(Vec<u64>, &String)> = if let Some((first, last)) = part.split_once("..") {
                let end = |text: &str| if text.is_empty() { Ok(Vec::new()) } else { read(text) };
                let (first, last) = (end(first)?, end(last)?);
                let depth = first.len().max(last.len()).max(1);
                let is_within = |version: &[u64]| *version >= *first && (*version <= *last || begins_with(version, &last));
                let mut within: Vec<_> = known.iter().filter(|(version, _)| is_within(version)).cloned().collect();
                if depth < 3 {
                    let start = |version: &[u64]| version[..depth.min(version.len())].to_vec();
                    let all = within.clone();
                    within.retain(|(one, _)| all.iter().all(|(other, _)| start(other) != start(one) || other <= one));
                }
                within
            } else {
                let wanted = read(part)?;
                let exact = known.iter().find(|(version, _)| *version == wanted);
                exact.or_else(|| known.iter().rfind(|(version, _)| begins_with(version, &wanted))).cloned().into_iter().collect()
            };
            ensure!(!found.is_empty(), "no release of {package} is '{part}': {}", listed());
            chosen.extend(found);
        }
        chosen.sort();
        chosen.dedup();
        Ok(chosen.into_iter().map(|(_, name)| Pin { package: package.clone(), version: name.clone() }).collect())
    }

    /// Versions that are all named, so that no index needs to be asked.
    pub fn named(&self) -> Option<Vec<String>> {
        let parts = || self.versions.split(',').map(str::trim);
        parts().all(|part| numbers(part).is_some_and(|numbers| numbers.len() > 2)).then(|| parts().map(String::from).collect())
    }

    /// Every release from one to another.
    pub fn between(&self, first: &str, last: &str, released: &[String]) -> Result<Vec<Pin>> {
        let end = |version: &str| {
            let one = Wanted { package: self.package.clone(), versions: version.to_string() }.choose(released)?;
            one.into_iter().next().context("a version that was chosen is there")
        };
        let (first, last) = (end(first)?, end(last)?);
        let (low, high) = (numbers(&first.version), numbers(&last.version));
        ensure!(low < high, "{first} is not older than {last}: write the older one first");
        let mut all: Vec<_> = released.iter().filter(|name| (low.clone()..=high.clone()).contains(&numbers(name))).collect();
        all.sort_by_key(|name| numbers(name));
        Ok(all.into_iter().map(|version| Pin { package: self.package.clone(), version: version.clone() }).collect())
    }
}

/// Each version of each package with each of the others, the last package's fastest.
pub fn combinations(packages: &[Vec<Pin>]) -> Vec<Vec<Pin>> {
    packages.iter().fold(vec![Vec::new()], |all, pins| {
        all.iter().flat_map(|chosen| pins.iter().map(|pin| [&chosen[..], std::slice::from_ref(pin)].concat())).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_meant_as_they_are_written() {
        let released: Vec<String> =
            ["2.15.0", "2.10.0", "2.9.1", "2.9.0", "2.11.0rc1", "2.11.0", "2.8.0", "2.11.0.post1", "1.13.1"]
                .map(String::from)
                .to_vec();
        let chosen = |versions: &str| {
            let wanted: Wanted = format!("torch={versions}").parse().unwrap();
            wanted.choose(&released).map(|pins| pins.into_iter().map(|pin| pin.version).collect::<Vec<String>>().join(" "))
        };
        for (written, meant) in [
            ("2.9..2.11", "2.9.1 2.10.0 2.11.0.post1"),
            ("2.9.0..2.10.0", "2.9.0 2.9.1 2.10.0"),
            ("2.11..", "2.11.0.post1 2.15.0"),
            ("..2.8", "1.13.1 2.8.0"),
            ("1..2", "1.13.1 2.15.0"),
            ("2.11.0,2.9", "2.9.1 2.11.0"),
            ("=2.9.0", "2.9.0"),
        ] {
            assert_eq!(chosen(written).unwrap(), meant, "{written}");
        }
        let said = format!("{:#}", chosen("2.12..2.14").unwrap_err());
        assert!(said.contains("no release of torch is '2.12..2.14': the newest are 2.15.0, 2.11.0.post1"), "{said}");
        assert!(format!("{:#}", chosen("new").unwrap_err()).contains("write it like 2.9.1"));
        for wrong in ["torch", "=2", "--index-url=x", "torch="] {
            assert!(wrong.parse::<Wanted>().is_err(), "{wrong}");
        }
        let wanted: Wanted = "torch=2".parse().unwrap();
        assert_eq!(wanted.between("2.9.0", "2.11.0", &released).unwrap().len(), 4);
        assert!(wanted.between("2.11.0", "2.9.0", &released).is_err());
        assert_eq!(wanted.named(), None);
        let named: Wanted = "torch=2.9.1, 2.11.0".parse().unwrap();
        assert_eq!(named.choose(&named.named().unwrap()).unwrap().len(), 2);
        let two = combinations(&[wanted.choose(&released).unwrap(), wanted.between("2.9.0", "2.9.1", &released).unwrap()]);
        assert_eq!(two.len(), 2);
        assert_eq!(two[1].iter().map(Pin::to_string).collect::<Vec<String>>(), ["torch==2.15.0", "torch==2.9.1"]);
    }
}
