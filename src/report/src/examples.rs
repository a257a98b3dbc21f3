//! What README shows of rehearsals: read from files that scripts write again, never pasted.

use base::units::Bytes;

/// Lines of an answer's list that README shows.
const LINES: usize = 2;

/// The beginning of an answer: the verdict, the peak's place, most of what fills it, and the first lines of code.
pub fn answer(text: &str) -> Option<String> {
    let part = |title: &str, most: usize| -> Option<Vec<&str>> {
        let lines = text.lines().skip_while(|line| !line.trim_start().starts_with(title));
        let found: Vec<&str> = lines.take_while(|line| !line.trim().is_empty()).take(most).collect();
        (!found.is_empty()).then_some(found)
    };
    let verdict = text.lines().find(|line| line.contains(" on the GPU at most"))?;
    let parts = [vec![verdict], part("The peak is in", 4)?, part("What fills it", 5)?, part("by line", 1 + LINES)?];
    Some(format!("```\n{}\n```", parts.map(|lines| lines.join("\n")).join("\n\n")))
}

/// Rehearsed beside published: Llama 3.1 8B on 8 and on 128 H100s, as PyTorch 2.7 trains it with the allocator as it is.
pub fn torchtitan(csv: &str) -> Option<String> {
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let column = |name: &str| rows.first()?.iter().position(|head| *head == name);
    let [torch, gpus, compiled, segments] = ["torch", "gpus", "compiled", "segments"].map(column);
    let (reserved, published) = (column("reserved")?, column("published_gib")?);
    let told = |cards: &str, is_compiled: &str| {
        let is = |row: &Vec<&str>, at: Option<usize>, text: &str| {
            at.and_then(|at| row.get(at)).is_some_and(|cell| cell.starts_with(text))
        };
        let row = rows.iter().find(|row| {
            is(row, torch, "2.7") && is(row, gpus, cards) && is(row, compiled, is_compiled) && is(row, segments, "as they are")
        })?;
        Some((Bytes(row.get(reserved)?.parse().ok()?).to_string(), row.get(published)?.to_string()))
    };
    let [(ours_8, theirs_8), (ours_128, theirs_128)] = [told("8", "no")?, told("128", "no")?];
    let [(compiled_8, their_compiled_8), (compiled_128, their_compiled_128)] = [told("8", "yes")?, told("128", "yes")?];
    Some(format!(
        "torchtitan's own table says that Llama 3.1 8B reserved {theirs_8} GiB on each of 8 H100s and {theirs_128} GiB on each of 128; compiled,\n\
         {their_compiled_8} and {their_compiled_128} GiB. Rehearsed without a GPU, from the same commit, with PyTorch 2.7 and the allocator's defaults: {ours_8} and\n\
         {ours_128}; compiled, {compiled_8} and {compiled_128}."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_cut_to_its_beginning() {
        let text = "epoch 1\nFITS x (1 GiB): 2 GiB on the GPU at most, 3 left.\n\n  peak requested 1\n\n  The peak is in the step.\n    at      a.py:1\n\n  \
                    What fills it\n      1 GiB  99 %  activations\n\n  by module\n      x\n\n  by line\n      1\n      2\n      3\n\n  step\n";
        let shown = "```\nFITS x (1 GiB): 2 GiB on the GPU at most, 3 left.\n\n  The peak is in the step.\n    at      a.py:1\n\n  What fills it\n      \
                     1 GiB  99 %  activations\n\n  by line\n      1\n      2\n```";
        assert_eq!(answer(text).as_deref(), Some(shown));
        assert_eq!(answer("nothing"), None);
    }
}
