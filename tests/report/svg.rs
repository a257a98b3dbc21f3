//! Enough of an SVG reader to see whether a picture is whole.

/// A text with the box that it takes up at most, in units of the view box.
pub struct Text {
    pub text: String,
    /// Font size on the page.
    pub pixels: f64,
    left: f64,
    right: f64,
    middle: f64,
    height: f64,
}

impl Text {
    pub fn is_within(&self, (width, height): (f64, f64)) -> bool {
        self.left >= 0.0 && self.right <= width && self.middle >= self.height / 2.0 && self.middle + self.height / 2.0 <= height
    }

    /// Whether two texts lie on each other.
    pub fn overlaps(&self, other: &Text) -> bool {
        let apart = (self.middle - other.middle).abs();
        self.left < other.right && other.left < self.right && apart < (self.height + other.height) / 2.0 * 0.9
    }
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let rest = &tag[tag.find(&format!(" {name}=\""))? + name.len() + 3..];
    Some(&rest[..rest.find('"')?])
}

/// The size of the view box and all texts.
pub fn texts(svg: &str) -> ((f64, f64), Vec<Text>) {
    let head = &svg[..svg.find('>').unwrap()];
    let view: Vec<f64> = attribute(head, "viewBox").unwrap().split(' ').map(|n| n.parse().unwrap()).collect();
    let scale = attribute(head, "width").unwrap().parse::<f64>().unwrap() / view[2];
    let read = |part: &str| {
        let (tag, rest) = part.split_once('>').unwrap();
        let number = |name: &str| attribute(&format!(" {tag}"), name).unwrap().parse::<f64>().unwrap();
        let text = rest[..rest.find("</text>").unwrap()].trim();
        let text =
            text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&apos;", "'").replace("&amp;", "&");
        let size = number("font-size");
        let width = 0.6 * size * text.chars().count() as f64;
        let left = match attribute(tag, "text-anchor") {
            Some("end") => number("x") - width,
            Some("middle") => number("x") - width / 2.0,
            _ => number("x"),
        };
        Text { text, pixels: size * scale, left, right: left + width, middle: number("y"), height: size }
    };
    ((view[2], view[3]), svg.split("<text ").skip(1).map(read).collect())
}

/// Every tag is closed, in order, and no bare ampersand stands in the text.
pub fn assert_well_formed(svg: &str) -> Result<(), String> {
    let mut open: Vec<&str> = Vec::new();
    for part in svg.split('<').skip(1) {
        let (tag, _) = part.split_once('>').ok_or_else(|| format!("a tag without its end: {part}"))?;
        let name = tag.split([' ', '/']).find(|name| !name.is_empty()).unwrap_or("");
        if tag.starts_with('/') {
            if open.pop() != Some(name) {
                return Err(format!("</{name}> closes nothing"));
            }
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        if tag.matches('"').count() % 2 == 1 {
            return Err(format!("an attribute without its end: {tag}"));
        }
    }
    let entity = |rest: &&str| ["amp;", "lt;", "gt;", "quot;", "apos;"].iter().any(|name| rest.starts_with(name));
    if let Some(bare) = svg.split('&').skip(1).find(|rest| !entity(rest)) {
        return Err(format!("a bare ampersand before '{}'", bare.chars().take(20).collect::<String>()));
    }
    if open.is_empty() { Ok(()) } else { Err(format!("{open:?} are never closed")) }
}
