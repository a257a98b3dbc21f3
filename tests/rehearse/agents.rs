//! What programs read: the schema of answers, held against answers of every command; the badge; and the tools of `vramlab mcp`, as a client calls them.

use super::scene::vramlab;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::Stdio;

fn capture(name: &str) -> PathBuf {
    common::root().join(format!("tests/rehearse/captures/{name}.cap"))
}

/// Holds what a command's `--json` wrote against its schema, in which every property has to stand.
pub fn is_of_the_schema(of: &str, answer: &Value) {
    let output = vramlab().args(["schema", of]).output().unwrap();
    let schema: Value = serde_json::from_slice(&output.stdout).unwrap();
    if let Err(why) = matches(&schema, &schema, answer) {
        panic!("{of}{why}: {answer}");
    }
}

/// As much of JSON Schema as is written; where a value is not of it, its path and why.
fn matches(root: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    if let Some(name) = schema["$ref"].as_str() {
        return matches(root, root.pointer(name.trim_start_matches('#')).unwrap(), value);
    }
    if let Some(choices) = schema.get("anyOf").or_else(|| schema.get("oneOf")) {
        let is_one = choices.as_array().unwrap().iter().any(|choice| matches(root, choice, value).is_ok());
        return is_one.then_some(()).ok_or_else(|| format!(": none of {choices}"));
    }
    if schema.get("const").is_some_and(|only| only != value) || schema["enum"].as_array().is_some_and(|all| !all.contains(value)) {
        return Err(format!(": {value} is not {schema}"));
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let of = |name: &Value| name == kind || (name == "number" && kind == "integer");
    let is_of = match &schema["type"] {
        Value::Array(names) => names.iter().any(of),
        Value::Null => schema.get("const").is_some() || schema.get("enum").is_some() || schema == &json!(true),
        name => of(name),
    };
    if !is_of {
        return Err(format!(": {value} is no {}", schema["type"]));
    }
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.is_object() && value.get(required).is_none() {
            return Err(format!(".{required}: is missing"));
        }
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        let known = schema["properties"].get(name).or_else(|| schema.get("additionalProperties").filter(|more| more.is_object()));
        matches(root, known.ok_or_else(|| format!(".{name}: is not in the schema"))?, inner)
            .map_err(|why| format!(".{name}{why}"))?;
    }
    for (at, inner) in value.as_array().into_iter().flatten().enumerate() {
        let items = schema["prefixItems"].get(at).or_else(|| schema.get("items"));
        matches(root, items.unwrap_or(&Value::Null), inner).map_err(|why| format!("[{at}]{why}"))?;
    }
    Ok(())
}

#[test]
fn answers_are_of_the_schema_that_is_printed() {
    let mut answers = 0;
    for entry in fs::read_dir(capture("training").parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "cap") {
            let shown = vramlab().arg("show").arg(&path).args(["--quiet", "--json", "-"]).output().unwrap();
            let answer: Value = serde_json::from_slice(&shown.stdout).unwrap();
            is_of_the_schema("rehearse", &answer);
            answers += 1;
            let broken = |change: &dyn Fn(&mut Value)| {
                let mut other = answer.clone();
                change(&mut other);
                std::panic::catch_unwind(|| is_of_the_schema("rehearse", &other)).is_err()
            };
            if answers == 1 {
                assert!(
                    broken(&|answer| answer["peak_reserved"] = json!("1 GiB")) && broken(&|answer| answer["schema"] = json!(0))
                );
                assert!(broken(&|answer| answer["processes"][0]["new"] = json!(1)));
                assert!(broken(&|answer| drop(answer.as_object_mut().unwrap().remove("verdict"))));
            }
        }
    }
    assert!(answers >= 14);
    let compared = vramlab().arg("diff").args([capture("training"), capture("leak")]).args(["--json", "-"]).output().unwrap();
    is_of_the_schema("diff", &serde_json::from_slice(&compared.stdout).unwrap());
}

#[test]
fn a_badge_says_whether_it_fits() {
    let badge = tempfile::tempdir().unwrap();
    let badge = badge.path().join("badge.svg");
    for (name, says) in [("training", Some("fits 24 GB")), ("too_large", Some("needs 11 GB")), ("fails", None)] {
        fs::remove_file(&badge).ok();
        let shown = vramlab().arg("show").arg(capture(name)).arg("--quiet").arg("--badge").arg(&badge).output().unwrap();
        let text = fs::read_to_string(&badge).ok();
        assert_eq!(text.is_some(), says.is_some(), "{name}: {}", String::from_utf8_lossy(&shown.stderr));
        if let (Some(text), Some(says)) = (text, says) {
            let texts: Vec<String> = scraper::Html::parse_document(&text)
                .select(&scraper::Selector::parse("text").unwrap())
                .map(|each| each.text().collect())
                .collect();
            assert_eq!(texts, ["GPU memory", says]);
        }
    }
}

#[test]
fn an_agent_calls_the_commands_as_tools() {
    let scene = tempfile::tempdir().unwrap();
    let script = "import torch\nw = torch.nn.Parameter(torch.ones(1 << 20, device='cuda'))\no = torch.optim.SGD([w], lr=1)\n\
                  for _ in range(2):\n    print('{\"jsonrpc\": \"not ours\"}')\n    w.sum().backward()\n    o.step()\n";
    fs::write(scene.path().join("train.py"), script).unwrap();
    let mut server = vramlab().arg("mcp").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut requests, mut lines) = (server.stdin.take().unwrap(), BufReader::new(server.stdout.take().unwrap()).lines());
    let mut ask = |id: u32, method: &str, params: Value| {
        writeln!(requests, "{}", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).unwrap();
        writeln!(requests, "{}", json!({ "jsonrpc": "2.0", "method": "notifications/progress" })).unwrap();
        // What the script prints is no line of these, and no notification is answered.
        let answer: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert!(answer["jsonrpc"] == "2.0" && answer["id"] == id, "{answer}");
        answer
    };
    let begun = ask(
        1,
        "initialize",
        json!({ "protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } }),
    );
    assert_eq!(begun["result"]["protocolVersion"], "2025-03-26");
    assert_eq!(begun["result"]["serverInfo"], json!({ "name": "vramlab", "version": env!("CARGO_PKG_VERSION") }));
    let listed = ask(2, "tools/list", json!({}));
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names, ["rehearse", "check", "serve", "diff", "what_if", "fit", "versions", "bisect"]);
    let of_output = |name: &str, result: &Value| {
        let schema = &tools.iter().find(|tool| tool["name"] == name).unwrap()["outputSchema"];
        // A client refuses a schema of which a part is missing.
        assert!(!schema.to_string().contains(":null"), "{name}: {schema}");
        matches(schema, schema, &result["structuredContent"]).unwrap_or_else(|why| panic!("{name}{why}: {result}"));
    };
    // Each property is a flag or an argument that the command has.
    for tool in tools {
        let name = tool["name"].as_str().unwrap();
        let command = if ["what_if", "check", "serve"].contains(&name) { "rehearse" } else { name };
        let help = String::from_utf8(vramlab().args([command, "--help"]).output().unwrap().stdout).unwrap();
        for name in tool["inputSchema"]["properties"]
            .as_object()
            .unwrap()
            .keys()
            .filter(|name| !["command", "directory"].contains(&name.as_str()))
        {
            let is_there = help.contains(&format!("--{name}")) || help.contains(&format!("<{}>", name.to_uppercase()));
            assert!(is_there, "{command} has no --{name}");
        }
    }
    let command = json!([common::python(), "train.py"]);
    let arguments = json!({ "command": command, "directory": scene.path(), "gpu": "2GiB", "steps": 1 });
    let called = ask(3, "tools/call", json!({ "name": "rehearse", "arguments": arguments }));
    let result = &called["result"];
    assert_eq!(result["isError"], false, "{result}");
    of_output("rehearse", result);
    assert!(result["content"][0]["text"].as_str().unwrap().contains("FITS a GPU of 2.00 GiB"), "{result}");
    let answer = &result["structuredContent"]["answer"];
    assert!(
        answer["verdict"] == "fits" && answer["peak_allocated"].as_i64() >= Some(8 << 20) && answer.get("processes").is_none(),
        "{answer}"
    );
    for (name, arguments, says) in [
        ("rehearse", json!({}), "'command' is missing"),
        ("rehearse", json!({ "command": ["true"], "cards": 2 }), "there is no 'cards'"),
        ("fit", json!({ "command": "python train.py", "batch": "--b {}" }), "is no array"),
        ("diff", json!({ "before": "--json=made.json", "after": "b" }), "begins with a dash"),
    ] {
        let refused = ask(4, "tools/call", json!({ "name": name, "arguments": arguments }));
        assert!(refused["result"]["isError"] == true && refused.to_string().contains(says), "{refused}");
    }
    assert_eq!(ask(5, "tools/call", json!({ "name": "train" }))["error"]["code"], -32602);
    assert_eq!(ask(6, "prompts/list", json!({}))["error"]["code"], -32601);
    let files = json!({ "before": capture("training"), "after": capture("leak") });
    let compared = ask(7, "tools/call", json!({ "name": "diff", "arguments": files }));
    of_output("diff", &compared["result"]);
    assert!(
        compared["result"]["structuredContent"]["answer"]["rows"].as_array().is_some_and(|rows| !rows.is_empty()),
        "{compared}"
    );
    let check =
        json!({ "command": command, "directory": scene.path(), "gpu": "rtx-4090", "steps": 1, "check": capture("training") });
    let shrunk = ask(8, "tools/call", json!({ "name": "check", "arguments": check }));
    assert!(shrunk["result"]["isError"] == false && shrunk["result"]["structuredContent"]["exit_status"] == 0, "{shrunk}");
    assert_eq!(shrunk["result"]["structuredContent"]["answer"]["check"]["grew"], false);
    of_output("check", &shrunk["result"]);
    let before = scene.path().join("before.json");
    let mut check = json!({ "command": command, "directory": scene.path(), "gpu": "2GiB", "check": before, "update": true });
    assert_eq!(ask(8, "tools/call", json!({ "name": "check", "arguments": check }))["result"]["isError"], false);
    fs::write(scene.path().join("train.py"), script.replace("1 << 20", "1 << 21")).unwrap();
    check["update"] = json!(false);
    let grew = &ask(8, "tools/call", json!({ "name": "check", "arguments": check }))["result"];
    of_output("check", grew);
    let found = &grew["structuredContent"];
    let row = &found["answer"]["check"]["difference"]["rows"][0];
    assert!(found["exit_status"] == 4 && row["line"].as_str().is_some_and(|line| line.contains("train.py:")), "{grew}");
    let tried = json!({ "command": command, "directory": scene.path(), "only": "expandable-segments" });
    let params = json!({ "name": "what_if", "arguments": tried, "_meta": { "progressToken": "p" } });
    writeln!(requests, "{}", json!({ "jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params })).unwrap();
    let mut heard: Vec<Value> = Vec::new();
    while heard.last().is_none_or(|last| last["id"] != 9) {
        heard.push(serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap());
    }
    let answered = heard.pop().unwrap();
    of_output("what_if", &answered["result"]);
    assert!(
        heard.iter().all(|one| one["method"] == "notifications/progress" && one["params"]["progressToken"] == "p"),
        "{heard:?}"
    );
    assert!(heard.iter().any(|one| one["params"]["message"] == "rehearsing the script as it is"), "{heard:?}");
    assert!(heard.is_sorted_by_key(|one| one["params"]["progress"].as_f64()), "{heard:?}");
    drop(requests);
    assert!(server.wait().unwrap().success());
}
