//! What a disk or a stranger may have done to a trace or an earlier answer: it is refused, or read as far as it goes.

use crate::answer::time::predict;
use crate::answer::{HostMemory, answers};
use crate::capture::process::Trace;
use crate::show::check::Earlier;
use common::damage::{damaged, how_many};
use std::fs;

const NAMES: &str = r#"{"kind":"process","process":7,"version":1,"parent":1,"arguments":["python","train.py"],"executable":"/usr/bin/python3","python":"3.11.7","torch":"2.11.0","cuda":"12.8","rank":0,"alloc_conf":null}
{"kind":"device","device":"NVIDIA GeForce RTX 4090","devices":1}
{"kind":"frame","frame":1,"file":"/a/train.py","line":12,"function":"main"}
{"kind":"stack","stack":1,"frames":[1]}
{"kind":"module","module":1,"name":"Net.layers.0","type":"Linear"}
{"kind":"tensor","tensor":1,"name":"Net.layers.0.weight"}
{"kind":"operator","operator":1,"name":"aten::mm","uncounted":"cuBLAS"}
{"kind":"generated","generated":"/tmp/g.py","lines":[[1,"/a/train.py",12,"main",""]]}
{"kind":"note","note":"CUDA graphs"}
{"kind":"unreached","unreached":"evaluation","what":"model.eval()","file":"/a/train.py","line":40}
{"kind":"varied","varied":"ids","module":"Net","least":[8,16],"most":[8,32],"step":2}
{"kind":"keeps","keeps":"losses","what":"a list of 3 tensors","file":"/a/train.py","function":"main"}
{"kind":"batches","batches":[[8,128],[8,128],[8,256]]}
{"kind":"loader","loader":"Rows of 64 samples","workers":2,"batches":3,"prefetched":2}
{"kind":"host","host":{"resident":900000000,"file":400000000,"untouched":0,"pinned":33554432}}
{"kind":"stopped","stopped":3,"at":5}
{"kind":"exception","exception":"ValueError","message":"no","out_of_memory":false,"frames":[["/a/train.py",12,"main"]],"at":6,"of_thread":false,"of_others":false}
{"kind":"ended","ended":true}
"#;

/// Three steps, in which blocks are made, labelled, freed and left behind.
fn events() -> Vec<u8> {
    let mut bytes = b"VLTRACE1".to_vec();
    bytes.extend([80u32.to_le_bytes(), 7u32.to_le_bytes()].concat());
    bytes.resize(64, 0);
    for step in 0..3u32 {
        for n in 0..20u64 {
            // Kinds: a segment, an allocation, a label, freed and completed, a value that was read.
            for kind in [5u8, 1, 10, 2, 3, 11].into_iter().filter(|kind| n % 3 == 0 || !matches!(kind, 2 | 3)) {
                let mut record = [0u8; 80];
                (record[0], record[1]) = (kind, (n % 4) as u8);
                record[4..8].copy_from_slice(&step.to_le_bytes());
                record[8..16].copy_from_slice(&((u64::from(step) * 100 + n) << 21).to_le_bytes());
                record[16..24].copy_from_slice(&(if kind == 10 { 1 } else { 1i64 << 20 }).to_le_bytes());
                record[24..32].copy_from_slice(&(1i64 << 20).to_le_bytes());
                [56, 64, 68].into_iter().for_each(|at| record[at] = 1);
                bytes.extend(record);
            }
        }
    }
    bytes.resize(bytes.len() + 800, 0);
    bytes
}

#[test]
fn damaged_traces_are_refused_or_read_as_far_as_they_go() {
    let (names, events) = (NAMES.as_bytes(), events());
    let folder = tempfile::tempdir().unwrap();
    let card = "rtx-4090".parse().unwrap();
    let (mut read, count) = (0, how_many(200));
    for seed in 0..=count {
        let of = |file: &[u8], which: u64| if seed > 0 && seed % 3 != which { damaged(file, seed) } else { file.to_vec() };
        fs::write(folder.path().join("names"), of(names, 0)).unwrap();
        fs::write(folder.path().join("events"), of(&events, 1)).unwrap();
        let Ok(trace) = Trace::read(folder.path()) else { continue };
        read += 1;
        assert!(seed > 0 || trace.notes[0].text == "CUDA graphs", "{:?}", trace.notes);
        let traces = [trace];
        let answers = answers(&traces, seed % 2 == 0);
        assert!(seed > 0 || (answers.len(), answers[0].steps, answers[0].growth.is_some()) == (1, 2, false), "{answers:?}");
        let steps = answers.first().map_or(0, |answer| answer.steps);
        let _ = (predict(&traces[0], &card, steps, None), HostMemory::of(&traces, 0));
    }
    println!("{read} of {count} damaged traces could be read");
    assert!(read > count / 10);
}

#[test]
fn damaged_answers_are_refused_or_shown_plainly() {
    let answer = r#"{"gpu":{"name":"rtx-4090"},"peak_allocated":1000000,"peak_reserved":2097152,"processes":[{"torch":"2.11.0",
        "peak":{"step":2,"phase":"backward","contents":[{"line":"/a/train.py:12","function":"f","source":"x = f(y)","module":"Net",
        "category":"activations","operator":"aten::mm","bytes":300000,"blocks":3,"allocated":900000,"made":3}]}}]}"#;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("earlier.json");
    for seed in 0..=how_many(200) {
        fs::write(&file, if seed > 0 { damaged(answer.as_bytes(), seed) } else { answer.into() }).unwrap();
        match Earlier::read(&file) {
            Ok(earlier) => drop(earlier.is_of("rtx-4090")),
            Err(error) => assert!(seed > 0 && !format!("{error:#}").contains('\u{1b}'), "{error:#}"),
        }
    }
    let with = |name: &str, bytes: &str| {
        fs::write(&file, answer.replace("rtx-4090", name).replace("1000000", bytes)).unwrap();
        format!("{:#}", Earlier::read(&file).and_then(|earlier| earlier.is_of("rtx-4090")).unwrap_err())
    };
    let said = with("h100\\n::error::\\u001b[31m", "1000000");
    assert!(said.contains("the earlier answer is of h100") && !said.contains(['\n', '\u{1b}']), "{said}");
    assert!(with("rtx-4090", "-9223372036854775808").contains("bytes that no card has"));
}
