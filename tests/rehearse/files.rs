//! What `vramlab rehearse --out` writes, of a real rehearsal: as the browser, memory_viz and Perfetto read it.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Its name, and what the page shows of it, would be markup.
const SCRIPT: &str = "
import torch
from torch import nn
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    x = torch.randn(256, 1024).cuda()
    loss = (model(x) - x).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
if FAIL: y = torch.empty(1 << 40, device='cuda')
";

fn rehearse(folder: &Path, fail: bool) -> (Output, PathBuf) {
    let script = folder.join("<script>alert(1)<!--.py");
    std::fs::write(&script, SCRIPT.replace("FAIL", if fail { "True" } else { "False" })).unwrap();
    let out = folder.join("out");
    let output = super::scene::vramlab()
        .args(["rehearse", "--gpu", "rtx-4090", "--steps", "all", "--out", out.to_str().unwrap(), "--"])
        .args([common::python(), script])
        .output()
        .unwrap();
    (output, out)
}

fn text(path: PathBuf) -> String {
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn a_folder_holds_the_whole_rehearsal() {
    let folder = tempfile::tempdir().unwrap();
    let (output, out) = rehearse(folder.path(), false);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_str(&text(out.join("rehearsal.json"))).unwrap();
    let (peak, reserved) = (answer["peak_allocated"].as_i64().unwrap(), answer["peak_reserved"].as_i64().unwrap());

    // The page: nothing from elsewhere, nothing of the script's is markup, and its data say what the answer says.
    let page = text(out.join("memory.html"));
    assert!(!page.contains("<script>alert"), "the script's name must be escaped");
    for outside in ["src=\"http", "<link", "@import", "url(http"] {
        assert!(!page.contains(outside), "{outside} in the page");
    }
    assert!(page.contains("default-src 'none'") && page.contains("FITS"), "{}", &page[..400]);
    let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    let data: Value = serde_json::from_str(data).unwrap();
    let sum = |moment: &Value| moment[2].as_array().unwrap().iter().map(|bytes| bytes.as_i64().unwrap()).sum::<i64>();
    let moments = data["moments"].as_array().unwrap();
    assert_eq!(moments.iter().map(sum).max(), Some(peak));
    // Blocks add up to their layers wherever one can point.
    for moment in moments {
        let event = moment[0].as_i64().unwrap();
        let mut layers = vec![0; moment[2].as_array().unwrap().len()];
        for block in data["blocks"].as_array().unwrap() {
            let [made, freed, bytes, layer] = [0, 1, 2, 3].map(|n| block[n].as_i64().unwrap());
            if made <= event && (freed == 0 || freed > event) {
                layers[layer as usize] += bytes;
            }
        }
        assert_eq!(Value::from(layers), moment[2], "at event {event}");
    }
    let names: Vec<&str> = data["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    for wanted in ["in between of step 1", "in optimizer of step 3", "Sequential.0.weight"] {
        assert!(names.contains(&wanted), "no '{wanted}' among {names:?}");
    }

    let svg = text(out.join("memory.svg"));
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>") && !svg.contains("<script"));
    for word in ["load", "forward", "backward", "optimizer", "step 1", "step 3", "activations"] {
        assert!(svg.contains(word), "no '{word}' in the picture");
    }

    let trace: Value = serde_json::from_str(&text(out.join("trace.json"))).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let most = |name: &str| {
        events.iter().filter(|e| e["ph"] == "C" && e["name"] == name).map(|e| e["args"]["bytes"].as_i64().unwrap()).max()
    };
    assert_eq!((most("allocated"), most("reserved")), (Some(peak), Some(reserved)));
    let slices = |name: &str| events.iter().filter(|e| e["ph"] == "X" && e["name"] == name).count();
    assert_eq!(["load", "step 1", "step 3", "backward", "optimizer"].map(slices), [1, 1, 1, 3, 3]);

    // The kernels of a step, one after the other, add up to the time of the card; those of modules are in the page.
    let predicted: Vec<&Value> = events.iter().filter(|event| event["cat"] == "predicted").collect();
    let at = |event: &Value, field: &str| event[field].as_f64().unwrap();
    assert!(predicted.windows(2).all(|pair| at(pair[0], "ts") + at(pair[0], "dur") <= at(pair[1], "ts") + 1e-6), "{predicted:?}");
    let total: f64 = predicted.iter().map(|event| at(event, "dur") * 1e-6).sum();
    assert!((total / at(&answer["time"], "device_seconds") - 1.0).abs() < 1e-9 && total > 0.0, "{total}: {}", answer["time"]);
    assert!(
        page.contains("Time of a step (predicted)") && page.contains("<td class=\"name\">Sequential.*</td><td class=\"number\">"),
        "{}",
        answer["time"]["modules"]
    );

    let pickle = std::fs::read(out.join("snapshot.pickle")).unwrap();
    common::memory_viz::reads_as_memory_viz(&pickle);
    // PyTorch's own reader agrees about what the allocator holds in the end.
    let reader = "import pickle, sys\nfrom torch.cuda._memory_viz import segsum, trace, trace_plot, segment_plot\n\
        data = pickle.load(open(sys.argv[1], 'rb'))\nsegsum(data), trace(data), trace_plot(data), segment_plot(data)\n\
        history = data['device_traces'][0]\n\
        of = lambda action: sum(e['size'] for e in history if e['action'] == action)\n\
        held = lambda field: sum(s[field] for s in data['segments'])\n\
        assert of('alloc') - of('free_completed') == held('requested_size'), 'blocks'\n\
        assert of('segment_alloc') - of('segment_free') == held('total_size'), 'segments'\n\
        assert all(sum(b['size'] for b in s['blocks']) == s['total_size'] for s in data['segments']), 'gaps'\n\
        assert any(f['filename'].endswith('.py') and f['line'] > 1 for e in history for f in e['frames']), 'frames'\n";
    let read = Command::new(common::python()).args(["-c", reader]).arg(out.join("snapshot.pickle")).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
}

#[test]
fn memory_that_ran_out_is_in_every_file() {
    let folder = tempfile::tempdir().unwrap();
    let (output, out) = rehearse(folder.path(), true);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let page = text(out.join("memory.html"));
    assert!(page.contains("DOES NOT FIT") && page.contains("Out of memory in "), "{}", &page[..400]);
    assert!(text(out.join("trace.json")).contains("\"out of memory\""));
    let pickle = std::fs::read(out.join("snapshot.pickle")).unwrap();
    assert!(pickle.windows(11).any(|bytes| bytes == b"device_free"), "the snapshot tells what the card had free");
}
