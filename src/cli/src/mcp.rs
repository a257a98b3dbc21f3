//! `vramlab mcp`: this program's commands as tools of an agent. Requests and answers of JSON-RPC 2.0, a line each, on the standard input and output,
//! as the Model Context Protocol has them.

use anyhow::{Context, Result};
use base::println;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};
use std::io::BufRead;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use tempfile::NamedTempFile;

/// The newest version of the protocol that this is written for; an older one that a client asks for has the same messages.
const PROTOCOL: &str = "2025-06-18";
/// The last of what a command printed: the answer is below what the script said.
const MOST_TEXT: usize = 20_000;
/// Of an answer the parts that have a row a block or a line; the text has the largest of them.
const DETAILS: [&str; 2] = ["processes", "cards"];

/// A property of a tool: its name, which is its flag's too, its type, and what it is.
type Property = (&'static str, &'static str, &'static str);

struct Tool {
    name: &'static str,
    words: &'static [&'static str],
    description: &'static str,
    properties: &'static [Property],
    required: &'static [&'static str],
}

const SHARED: [Property; 6] = [
    ("command", "array", "The training command as it is typed, a word each: [\"python\", \"train.py\", \"--batch-size\", \"32\"]"),
    ("directory", "string", "Where it is run; without it, where this server was started"),
    ("gpu", "string", "A card (rtx-4090, a100-80g, ...) or a size (24GiB); 24GiB without it"),
    ("steps", "integer", "Optimizer steps after which the script is stopped; 3 without it"),
    ("timeout", "number", "Seconds after which a rehearsal is ended"),
    ("no-init", "boolean", "Leave new parameters uninitialised, so that large models need little host memory"),
];
const FAKE_DATA: Property =
    ("fake-data", "string", "Rows in place of data sets that are not there; columns such as text:string,label:class10, or nothing");

const TOOLS: [Tool; 4] = [
    Tool {
        name: "rehearse",
        words: &["rehearse"],
        description: "Runs an unmodified PyTorch training or inference command on a simulated GPU, which nobody needs to have, and says whether it \
                      fits, its peak of memory, what fills that, and the predicted time of a step. Files and uploads are held back.",
        properties: &[FAKE_DATA],
        required: &["command"],
    },
    Tool {
        name: "what_if",
        words: &["rehearse", "--what-if"],
        description: "Tries memory techniques on a command (checkpoints, autocast, smaller micro-batches, ...): what each saves and costs, and the \
                      lines to write. One rehearsal for each: minutes.",
        properties: &[
            FAKE_DATA,
            ("batch", "string", "The command's flag for its batch size, as in '--batch-size {}'; with accumulation"),
            ("accumulation", "string", "The command's flag for its gradient accumulation steps, as in '--grad-accum {}'"),
            ("only", "string", "Names of techniques, with commas, in place of all"),
        ],
        required: &["command"],
    },
    Tool {
        name: "fit",
        words: &["fit"],
        description: "Finds the largest batch with which a command fits a GPU.",
        properties: &[FAKE_DATA, ("batch", "string", "The command's flag for its batch size, as in '--batch-size {}'")],
        required: &["command", "batch"],
    },
    Tool {
        name: "versions",
        words: &["versions"],
        description: "Rehearses a command with several versions of PyTorch or of a package, which are installed aside: what it takes with each, and \
                      the lines that made it grow. Needs a network.",
        properties: &[
            ("torch", "string", "Versions of PyTorch: 2.9..2.15, or 2.9.1,2.11.0"),
            ("package", "string", "Versions of a package: transformers=5.10..5.17"),
        ],
        required: &["command"],
    },
];

impl Tool {
    fn properties(&self) -> impl Iterator<Item = &Property> {
        SHARED.iter().chain(self.properties)
    }

    fn listed(&self) -> Value {
        let properties: Map<String, Value> = self
            .properties()
            .map(|(name, kind, description)| {
                let mut schema = json!({ "type": kind, "description": description });
                if *kind == "array" {
                    schema["items"] = json!({ "type": "string" });
                }
                ((*name).to_string(), schema)
            })
            .collect();
        let schema =
            json!({ "type": "object", "properties": properties, "required": self.required, "additionalProperties": false });
        json!({ "name": self.name, "description": self.description, "inputSchema": schema })
    }

    /// The program's flags with the command, and where it runs.
    fn arguments(&self, given: &Map<String, Value>) -> Result<(Vec<String>, Option<PathBuf>), String> {
        if let Some(missing) = self.required.iter().find(|name| !given.contains_key(**name)) {
            return Err(format!("'{missing}' is missing"));
        }
        let (mut flags, mut command, mut folder) = (Vec::new(), Vec::new(), None);
        for (name, value) in given {
            let Some((_, kind, _)) = self.properties().find(|property| property.0 == name) else {
                let known: Vec<&str> = self.properties().map(|property| property.0).collect();
                return Err(format!("there is no '{name}'; {} takes {}", self.name, known.join(", ")));
            };
            match (value, *kind) {
                (Value::Array(words), "array") if words.iter().all(Value::is_string) && !words.is_empty() => {
                    command = words.iter().filter_map(Value::as_str).map(str::to_string).collect();
                }
                (Value::String(text), "string") if name == "directory" => folder = Some(PathBuf::from(text)),
                (Value::String(text), "string") => flags.push(format!("--{name}={text}")),
                (Value::Number(number), "integer" | "number") => flags.push(format!("--{name}={number}")),
                (Value::Bool(true), "boolean") => flags.push(format!("--{name}")),
                (Value::Bool(false), "boolean") => {}
                _ => return Err(format!("'{name}' is no {kind} that it takes: {value}")),
            }
        }
        Ok(([flags, vec!["--".to_string()], command].concat(), folder))
    }

    /// Starts the program itself, which writes its answer into a file.
    fn start(&self, arguments: Vec<String>, folder: Option<PathBuf>) -> Result<(Child, NamedTempFile)> {
        let answer = NamedTempFile::new().context("making a file for the answer")?;
        let mut command = Command::new(std::env::current_exe().context("finding this program's own file")?);
        command.args(self.words).arg("--json").arg(answer.path()).args(arguments).current_dir(folder.unwrap_or(".".into()));
        // What the script prints is part of the text, and not of the protocol.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env(ENDS_WITH_PARENT, "1");
        Ok((command.spawn().context("starting the rehearsal")?, answer))
    }

    /// What a client is shown of it, once it has ended.
    fn shown(child: Child, answer: &NamedTempFile) -> Result<Value> {
        let output = child.wait_with_output().context("waiting for the rehearsal")?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        if let Some(cut) = text.len().checked_sub(MOST_TEXT) {
            let cut = (cut..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
            text.replace_range(..cut, "...");
        }
        let mut found: Value =
            std::fs::read_to_string(answer.path()).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        if let Some(answer) = found.as_object_mut() {
            DETAILS.iter().for_each(|name| drop(answer.remove(*name)));
        }
        let status = output.status.code();
        // 3 is an answer, too: it does not fit.
        let is_error = found.is_null() || !matches!(status, Some(0 | 3));
        Ok(json!({
            "content": [{ "type": "text", "text": text }],
            "structuredContent": { "exit_status": status, "answer": found },
            "isError": is_error
        }))
    }
}

/// What the server waits for.
enum Event {
    Line(Vec<u8>),
    End,
    /// Of a call that has ended: its request's id, and what answers it.
    Called(Value, Value),
}

/// Answers requests until the standard input ends, and ends with it what still runs. Calls run beside one another, and others are answered meanwhile.
pub fn serve() -> Result<u8> {
    let (sender, events) = channel();
    let lines = sender.clone();
    thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        loop {
            let mut line = Vec::new();
            if !matches!(input.read_until(b'\n', &mut line), Ok(1..)) {
                return lines.send(Event::End).unwrap_or(());
            }
            if lines.send(Event::Line(line)).is_err() {
                return;
            }
        }
    });
    let mut calls = Calls { running: Vec::new(), ends: sender };
    let mut has_ended = false;
    for event in events {
        match event {
            Event::Line(line) if line.trim_ascii().is_empty() => {}
            Event::Line(line) => calls.answered(&line).into_iter().for_each(|answer| println!("{answer}")),
            Event::End => {
                has_ended = true;
                calls.running.iter().for_each(|(_, process)| end(*process));
            }
            Event::Called(id, answer) => {
                // One that was cancelled is not answered.
                if let Some(at) = calls.running.iter().position(|(running, _)| *running == id) {
                    calls.running.remove(at);
                    println!("{answer}");
                }
            }
        }
        if has_ended && calls.running.is_empty() {
            break;
        }
    }
    Ok(0)
}

/// Asks a rehearsal to end, which ends all that it has started.
fn end(process: Pid) {
    kill_process(process, Signal::TERM).ok();
}

/// The calls that run: their requests' ids and processes.
struct Calls {
    running: Vec<(Value, Pid)>,
    ends: Sender<Event>,
}

fn failed(id: &Value, code: i32, message: String) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}

fn done(id: &Value, result: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

impl Calls {
    /// What answers a message at once; nothing answers a notification, nor a call before it has ended.
    fn answered(&mut self, line: &[u8]) -> Option<Value> {
        let Ok(request) = serde_json::from_slice::<Value>(line) else {
            return Some(failed(&Value::Null, -32700, "this is no JSON".to_string()));
        };
        let parameters = &request["params"];
        if request["method"] == "notifications/cancelled" {
            let at = self.running.iter().position(|(id, _)| *id == parameters["requestId"])?;
            end(self.running.remove(at).1);
        }
        let id = request.get("id")?;
        let Some(method) = request["method"].as_str() else { return Some(failed(id, -32600, "there is no method".to_string())) };
        let result = match method {
            "initialize" => json!({
                "protocolVersion": parameters["protocolVersion"].as_str().filter(|version| *version < PROTOCOL).unwrap_or(PROTOCOL),
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "vramlab", "version": env!("CARGO_PKG_VERSION") },
            }),
            "ping" => json!({}),
            "tools/list" => json!({ "tools": TOOLS.iter().map(Tool::listed).collect::<Vec<Value>>() }),
            "tools/call" => {
                let name = parameters["name"].as_str().unwrap_or_default();
                let Some(tool) = TOOLS.iter().find(|tool| tool.name == name) else {
                    return Some(failed(id, -32602, format!("there is no tool '{name}'")));
                };
                let (arguments, folder) = match tool.arguments(parameters["arguments"].as_object().unwrap_or(&Map::new())) {
                    Ok(found) => found,
                    Err(why) => return Some(done(id, json!({ "content": [{ "type": "text", "text": why }], "isError": true }))),
                };
                return self.start(tool, id, arguments, folder).err().map(|why| failed(id, -32603, format!("{why:#}")));
            }
            _ => return Some(failed(id, -32601, format!("there is no method '{method}'"))),
        };
        Some(done(id, result))
    }

    /// From this thread: what it starts is ended where it is gone.
    fn start(&mut self, tool: &Tool, id: &Value, arguments: Vec<String>, folder: Option<PathBuf>) -> Result<()> {
        let (child, answer) = tool.start(arguments, folder)?;
        self.running.push((id.clone(), Pid::from_child(&child)));
        let (id, ends) = (id.clone(), self.ends.clone());
        thread::spawn(move || {
            let answer = match Tool::shown(child, &answer) {
                Ok(result) => done(&id, result),
                Err(why) => failed(&id, -32603, format!("{why:#}")),
            };
            ends.send(Event::Called(id, answer)).ok();
        });
        Ok(())
    }
}

/// Set where a rehearsal is to end with the process that started it, however that ends.
const ENDS_WITH_PARENT: &str = "VRAMLAB_ENDS_WITH_PARENT";

pub fn end_with_parent() {
    if std::env::var_os(ENDS_WITH_PARENT).is_some() {
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).ok();
    }
}
