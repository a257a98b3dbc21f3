//! Results come from other people's machines: whatever stands in them, a report of them is safe to open, and none makes the reporter panic.

use super::fixture;
use pulldown_cmark::{Event, Options, Parser, Tag};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Ways to run a script, to load something from elsewhere, and to lead away.
const HOSTILE: [&str; 4] = [
    "<img src=x onerror=alert(1)>",
    "</details></td></table><script>alert(1)</script> & \" ' > --> ",
    "[evil](javascript:alert(1)) ![evil](https://evil.example/x.svg) <https://evil.example> https://evil.example www.evil.example",
    "`<b>` | a | b | # x ```\n\n# heading\n\n<iframe src=javascript:alert(1)>\u{202E}",
];

fn results(root: &Path) -> PathBuf {
    let results = root.join("results");
    fixture::write(&results, fixture::CPU, fixture::inplace());
    results
}

fn manifest(results: &Path) -> PathBuf {
    results.join("amd-epyc-2c/inplace/run.json")
}

fn protocol(results: &Path) -> PathBuf {
    results.join("protocols/inplace-1.json")
}

fn samples(results: &Path) -> PathBuf {
    results.join("amd-epyc-2c/inplace/samples.csv")
}

/// The pages have no markup that the report did not write.
fn assert_safe(out: &Path, what: &str) {
    let everything = scraper::Selector::parse("*").unwrap();
    for path in std::fs::read_dir(out)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
    {
        let text = std::fs::read_to_string(&path).unwrap();
        for event in Parser::new_ext(&text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH) {
            match event {
                Event::Html(html) | Event::InlineHtml(html) => {
                    for element in scraper::Html::parse_fragment(&html).select(&everything) {
                        let name = element.value().name();
                        assert!(
                            ["html", "details", "summary", "picture", "source", "img", "a", "br"].contains(&name),
                            "{what}: {html}"
                        );
                        assert!(element.value().attrs().all(|(attribute, _)| !attribute.starts_with("on")), "{what}: {html}");
                    }
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    assert!(!dest_url.contains("javascript") && !dest_url.contains("evil"), "{what}: {dest_url}");
                }
                _ => {}
            }
        }
    }
    for entry in std::fs::read_dir(out.join("plots")).unwrap() {
        let svg = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        super::svg::assert_well_formed(&svg).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(
            !svg.contains("<script") && !svg.contains("<img") && !svg.contains("<iframe") && !svg.contains("href"),
            "{what}: a picture has markup"
        );
    }
}

/// Puts a text into every text of a JSON document that is not one of a few words with a meaning; returns how many.
fn poison(value: &mut Value, hostile: &str, kept: &[&str]) -> usize {
    match value {
        Value::String(text) if kept.contains(&text.as_str()) => 0,
        Value::String(text) => {
            *text = format!("{text}{hostile}");
            1
        }
        Value::Array(items) => items.iter_mut().map(|item| poison(item, hostile, kept)).sum(),
        Value::Object(fields) => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            keys.iter().map(|key| fields.get_mut(key).map_or(0, |value| poison(value, hostile, kept))).sum()
        }
        _ => 0,
    }
}

/// Every text of `run.json` and of its protocol, one at a time, so that nothing hides behind another's refusal; then all at once.
#[test]
fn hostile_text_in_any_field_of_a_manifest_stays_text() {
    let root = tempfile::tempdir().unwrap();
    let (results, out) = (results(root.path()), root.path().join("report"));
    let read = |path: &Path| -> Value { serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap() };
    let original = json!({"run": read(&manifest(&results)), "protocol": read(&protocol(&results))});
    let write = |document: &Value| {
        std::fs::write(manifest(&results), document["run"].to_string()).unwrap();
        std::fs::write(protocol(&results), document["protocol"].to_string()).unwrap();
    };
    let mut places = Vec::new();
    texts(&original, String::new(), &mut places);
    assert!(places.len() > 100, "{}", places.len());
    let mut reported = 0;
    // Lists of one kind are alike: of each, the first item.
    let mut kinds = std::collections::BTreeSet::new();
    places.retain(|place| {
        kinds.insert(
            place.split('/').map(|part| if part.parse::<usize>().is_ok() { "0" } else { part }).collect::<Vec<_>>().join("/"),
        )
    });
    for (n, place) in places.iter().enumerate() {
        let mut document = original.clone();
        let text = document.pointer_mut(place).unwrap();
        *text = Value::String(format!("{}{}", text.as_str().unwrap(), HOSTILE[n % HOSTILE.len()]));
        write(&document);
        // What is refused writes nothing.
        if report::write(&results, &out).is_ok() {
            assert_safe(&out, place);
            reported += 1;
        }
    }
    assert!(reported > places.len() / 2, "{reported} of {} are reported", places.len());
    let words = ["full", "quick", "smoke", "check", "memory", "time", "cpu", "gpu", "dry", "python", "lines", "bars"];
    for hostile in HOSTILE {
        let mut document = original.clone();
        for field in ["identity", "commands"] {
            assert!(poison(&mut document["run"][field], hostile, &words) > 0);
        }
        for field in ["title", "question", "hypothesis", "threats"] {
            assert!(poison(&mut document["protocol"][field], hostile, &words) > 0);
        }
        for claim in document["protocol"]["claims"].as_array_mut().unwrap() {
            for field in ["id", "from", "text", "meaning"] {
                poison(&mut claim[field], hostile, &words);
            }
        }
        write(&document);
        report::write(&results, &out).unwrap();
        assert_safe(&out, hostile);
    }
}

/// Where texts stand in a document, as JSON pointers.
fn texts(value: &Value, place: String, found: &mut Vec<String>) {
    match value {
        Value::String(_) => found.push(place),
        Value::Array(items) => items.iter().enumerate().for_each(|(n, item)| texts(item, format!("{place}/{n}"), found)),
        Value::Object(fields) => fields
            .iter()
            .for_each(|(key, item)| texts(item, format!("{place}/{}", key.replace('~', "~0").replace('/', "~1")), found)),
        _ => {}
    }
}

#[test]
fn hostile_text_in_any_field_of_the_samples_stays_text() {
    let root = tempfile::tempdir().unwrap();
    let (results, out) = (results(root.path()), root.path().join("report"));
    let mut reader = csv::Reader::from_path(samples(&results)).unwrap();
    let head = reader.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    for hostile in HOSTILE {
        // The reason of a sample and of a pass, a metric that the protocol does not know, and its unit.
        for field in ["reason", "metric", "unit"] {
            let at = head.iter().position(|name| name == field).unwrap();
            let mut writer = csv::Writer::from_path(samples(&results)).unwrap();
            writer.write_record(&head).unwrap();
            for (n, row) in rows.iter().enumerate() {
                let is_closing = row[3].starts_with("pass.");
                let changed = n % 3 == 0 && (field == "reason" || !is_closing);
                let fields = row
                    .iter()
                    .enumerate()
                    .map(|(m, text)| if m == at && changed { format!("{text}{hostile}") } else { text.to_string() });
                writer.write_record(fields).unwrap();
            }
            drop(writer);
            if report::write(&results, &out).is_ok() {
                assert_safe(&out, &format!("{field}: {hostile}"));
            }
        }
    }
    for name in ["<img src=x onerror=alert(1)>", "a b\"c'(d)[e]", "-x &lt; #y"] {
        let folder = results.join("amd-epyc-2c/inplace/files");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), "kept").unwrap();
        let machine = results.join(name);
        std::fs::rename(results.join("amd-epyc-2c"), &machine).unwrap();
        fixture::write(&results, fixture::GPU, fixture::inplace());
        report::write(&results, &out).unwrap();
        assert_safe(&out, name);
        std::fs::rename(machine, results.join("amd-epyc-2c")).unwrap();
    }
}

/// A level is a part of each cell's text, of the plan and of the protocol; where all three say the same it is shown.
#[test]
fn hostile_levels_of_cells_stay_text() {
    let root = tempfile::tempdir().unwrap();
    let (results, out) = (results(root.path()), root.path().join("report"));
    let [plan, written, rows] =
        [manifest(&results), protocol(&results), samples(&results)].map(|path| std::fs::read_to_string(path).unwrap());
    // A cell's text has no spaces within a level.
    for hostile in [
        "<img/src=x/onerror=alert(1)>",
        "</td></table><script>alert(1)</script>\"'&",
        "[x](javascript:alert(1))![y](https://evil.example/x.svg)",
        "`<b>`|**c**|#",
        "../../../evil\u{202E}%00",
    ] {
        let level = format!("chain{hostile}");
        let quoted = serde_json::to_string(&level).unwrap();
        std::fs::write(manifest(&results), plan.replace("chain", quoted.trim_matches('"'))).unwrap();
        std::fs::write(protocol(&results), written.replace("chain", quoted.trim_matches('"'))).unwrap();
        let mut reader = csv::Reader::from_reader(rows.as_bytes());
        let mut writer = csv::Writer::from_path(samples(&results)).unwrap();
        writer.write_record(reader.headers().unwrap()).unwrap();
        for row in reader.records().map(Result::unwrap) {
            writer.write_record(row.iter().map(|field| field.replace("chain", &level))).unwrap();
        }
        drop(writer);
        report::write(&results, &out).unwrap_or_else(|error| panic!("{hostile}: {error:#}"));
        assert_safe(&out, hostile);
        assert!(super::page_of(&out, "inplace").contains("chain"), "{hostile}: the level is shown");
        assert!(std::fs::read_dir(root.path()).unwrap().count() == 2, "{hostile}: nothing is written elsewhere");
    }
}

/// Cut, flipped, doubled, and with huge numbers: read or refused, and never a panic.
#[test]
fn damaged_files_never_panic() {
    let root = tempfile::tempdir().unwrap();
    let (results, out) = (results(root.path()), root.path().join("report"));
    for path in [manifest(&results), samples(&results)] {
        let whole = std::fs::read(&path).unwrap();
        let text = String::from_utf8(whole.clone()).unwrap();
        let mut damaged: Vec<Vec<u8>> = Vec::new();
        for n in 1..20 {
            let at = whole.len() * n / 20;
            damaged.push(whole[..at].to_vec());
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (n % 7);
            damaged.push(flipped);
            let mut doubled = whole.clone();
            doubled.splice(at..at, whole[at - whole.len() / 40..at].to_vec());
            damaged.push(doubled);
        }
        for number in ["1e308", "-1e308", "4294967295", "18446744073709551615", "1e999", "-1", "0", "NaN"] {
            let digits: Vec<usize> = text.match_indices(|c: char| c.is_ascii_digit()).map(|(at, _)| at).collect();
            let at = digits[(text.len() + number.len() * 13) % digits.len()];
            damaged.push(format!("{}{number}{}", &text[..at], &text[at + 1..]).into_bytes());
            damaged.push(text.replace(",1,", &format!(",{number},")).into_bytes());
            damaged.push(text.replace(":1,", &format!(":{number},")).into_bytes());
        }
        assert!(damaged.len() > 75);
        for contents in damaged {
            std::fs::write(&path, contents).unwrap();
            if report::write(&results, &out).is_ok() {
                assert_safe(&out, "a damaged file");
                let text = super::text(&out);
                for broken in ["NaNx", "NaN %", "NaN GiB", "infx", "inf %", "inf GiB", " inf ", "-inf"] {
                    assert!(!text.contains(broken), "{broken}: {:?}", text.lines().find(|line| line.contains(broken)));
                }
            }
        }
        std::fs::write(&path, &whole).unwrap();
    }
    report::write(&results, &out).unwrap();
}
