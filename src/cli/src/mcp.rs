//! `vramlab mcp`: this program's commands as tools of an agent. Requests and answers of JSON-RPC 2.0, a line each, on the standard input and output,
//! as the Model Context Protocol has them.

use anyhow::{Context, Result, anyhow, bail};
use base::println;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// The newest version of the protocol that this is written for; an older one that a client asks for has the same messages.
const PROTOCOL: &str = "2025-06-18";
/// The last of what a command printed: the answer is below what the script said.
const MOST_TEXT: usize = 20_000;
/// Of an answer the parts that have a row a block or a line; the text has the largest of them.
const DETAILS: [&str; 2] = ["processes", "cards"];

/// How often a call that says nothing is told to go on, well within the time after which clients give up.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// A property of a tool: its name, which is its flag's too unless it is one of `words`, its type, and what it is.
type Property = (&'static str, &'static str, &'static str);

struct Tool {
    name: &'static str,
    words: &'static [&'static str],
    /// Of which command's JSON its answer is, as `vramlab schema` names it.
    answers: &'static str,
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

/// Those that a command has no flags for: words in this order.
const WORDS: [&str; 4] = ["before", "after", "good", "bad"];

const TOOLS: [Tool; 8] = [
    Tool {
        name: "rehearse",
        words: &["rehearse"],
        answers: "rehearse",
        description: "Runs an unmodified PyTorch training or inference command on a simulated GPU, which nobody needs to have, and says whether it \
                      fits, its peak of memory, what fills that, and the predicted time of a step. Files and uploads are held back. Of a server \
                      (vllm serve and others) it says how large its KV cache is.",
        properties: &[FAKE_DATA],
        required: &["command"],
    },
    Tool {
        name: "check",
        words: &["rehearse"],
        answers: "rehearse",
        description: "Rehearses a command and compares its peak with an answer or a capture of before: which line made it grow. Exit status 4 where \
                      it grew.",
        properties: &[
            FAKE_DATA,
            ("check", "string", "The file of before: what update wrote, or an answer of --json or --keep"),
            ("tolerance", "string", "How much it may grow, as 64MiB or 2%"),
            ("update", "boolean", "Write the file, in place of comparing with it"),
        ],
        required: &["command", "check"],
    },
    Tool {
        name: "serve",
        words: &["rehearse"],
        answers: "rehearse",
        description: "Rehearses a server of a language model (vllm serve and others) under requests: whether it starts, its KV cache in bytes, tokens and \
                      requests, what a token takes, and which flags give more tokens.",
        properties: &[("requests", "string", "How many at once, of how many tokens each, and how many it answers: 8x512+64")],
        required: &["command"],
    },
    Tool {
        name: "diff",
        words: &["diff"],
        answers: "diff",
        description: "Compares the peaks of two rehearsals that were kept as files (--json or --keep): what makes the difference.",
        properties: &[("before", "string", "The file of the first"), ("after", "string", "The file of the second")],
        required: &["before", "after"],
    },
    Tool {
        name: "what_if",
        words: &["rehearse", "--what-if"],
        answers: "what-if",
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
        answers: "fit",
        description: "Finds the largest batch with which a command fits a GPU.",
        properties: &[FAKE_DATA, ("batch", "string", "The command's flag for its batch size, as in '--batch-size {}'")],
        required: &["command", "batch"],
    },
    Tool {
        name: "versions",
        words: &["versions"],
        answers: "versions",
        description: "Rehearses a command with several versions of PyTorch or of a package, which are installed aside: what it takes with each, and \
                      the lines that made it grow. Needs a network.",
        properties: &[
            ("torch", "string", "Versions of PyTorch: 2.9..2.15, or 2.9.1,2.11.0"),
            ("package", "string", "Versions of a package: transformers=5.10..5.17"),
        ],
        required: &["command"],
    },
    Tool {
        name: "bisect",
        words: &["bisect"],
        answers: "bisect",
        description: "Finds the first release of a package, or the first commit of a clone, with which a command takes more memory or time, and the \
                      lines that grew. Needs a network for releases.",
        properties: &[
            ("package", "string", "The package whose releases are tried"),
            ("repo", "string", "In place of a package, a clone whose commits are tried"),
            ("good", "string", "A release or commit before it grew"),
            ("bad", "string", "A later one"),
            ("by", "string", "What is compared: tokens of a server, allocated, reserved, needs or step"),
        ],
        required: &["command", "good", "bad"],
    },
];

impl Tool {
    fn properties(&self) -> impl Iterator<Item = &Property> {
        let shared = if self.required.contains(&"command") { &SHARED[..] } else { &[] };
        shared.iter().chain(self.properties)
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
        json!({ "name": self.name, "description": self.description, "inputSchema": schema, "outputSchema": self.output() })
    }

    /// Of the structured answer: several cards have one each, and a command that failed has none.
    fn output(&self) -> Value {
        let mut answer = rehearse::schema(self.answers);
        let mut definitions = json!({});
        if let Some(all) = answer.as_object_mut() {
            definitions = all.remove("$defs").unwrap_or(definitions);
            ["$id", "$schema"].iter().for_each(|name| drop(all.remove(*name)));
            if let Some(properties) = all.get_mut("properties").and_then(Value::as_object_mut) {
                properties.retain(|name, _| !DETAILS.contains(&name.as_str()));
            }
            if let Some(required) = all.get_mut("required").and_then(Value::as_array_mut) {
                required.retain(|name| !DETAILS.iter().any(|detail| name == detail));
            }
        }
        // What only the parts that are left out refer to is left out, too.
        while let Some(all) = definitions.as_object_mut() {
            let (before, text) = (all.len(), format!("{answer}{}", Value::Object(all.clone())));
            all.retain(|name, _| text.contains(&format!("#/$defs/{name}\"")));
            if all.len() == before {
                break;
            }
        }
        json!({
            "type": "object",
            "properties": {
                "exit_status": { "type": ["integer", "null"] },
                "answer": { "anyOf": [answer, { "type": "array", "items": answer }, { "type": "null" }] },
            },
            "required": ["exit_status", "answer"],
            "$defs": definitions,
        })
    }

    /// The program's flags with the command, and where it runs.
    fn arguments(&self, given: &Map<String, Value>) -> Result<(Vec<String>, Option<PathBuf>), String> {
        if let Some(missing) = self.required.iter().find(|name| !given.contains_key(**name)) {
            return Err(format!("'{missing}' is missing"));
        }
        let (mut flags, mut command, mut folder) = (Vec::new(), Vec::new(), None);
        let words = WORDS.iter().filter_map(|name| given.get(*name)?.as_str().map(str::to_string)).collect();
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
                (Value::String(text), "string") if WORDS.contains(&name.as_str()) => {
                    if text.starts_with('-') {
                        return Err(format!("'{name}' begins with a dash, as flags do: {text}"));
                    }
                }
                (Value::String(text), "string") => flags.push(format!("--{name}={text}")),
                (Value::Number(number), "integer" | "number") => flags.push(format!("--{name}={number}")),
                (Value::Bool(true), "boolean") => flags.push(format!("--{name}")),
                (Value::Bool(false), "boolean") => {}
                _ => return Err(format!("'{name}' is no {kind} that it takes: {value}")),
            }
        }
        let separator = if command.is_empty() { Vec::new() } else { vec!["--".to_string()] };
        Ok(([flags, words, separator, command].concat(), folder))
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

    /// What a client is shown of it, once it has ended; meanwhile `progress` hears what it is about.
    fn shown(mut child: Child, answer: &NamedTempFile, progress: impl Fn(&str)) -> Result<Value> {
        let (Some(mut output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else { bail!("it has no pipes") };
        let printed = thread::spawn(move || {
            let mut all = Vec::new();
            output.read_to_end(&mut all).map(|_| all)
        });
        let (sender, lines) = channel();
        thread::spawn(move || {
            let mut errors = BufReader::new(errors);
            let mut line = Vec::new();
            while matches!(errors.read_until(b'\n', &mut line), Ok(1..)) && sender.send(std::mem::take(&mut line)).is_ok() {}
        });
        let (mut said, mut last) = (Vec::new(), "rehearsing".to_string());
        loop {
            match lines.recv_timeout(HEARTBEAT) {
                Ok(line) => {
                    if let Some(what) = line.strip_prefix(b"vramlab: ") {
                        last = String::from_utf8_lossy(what.trim_ascii()).into_owned();
                        progress(&last);
                    }
                    said.extend(line);
                }
                Err(RecvTimeoutError::Timeout) => progress(&last),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = child.wait().context("waiting for the rehearsal")?.code();
        let printed = printed.join().map_err(|_| anyhow!("its output could not be read"))?.context("reading its output")?;
        let mut text = String::from_utf8_lossy(&printed).into_owned() + &String::from_utf8_lossy(&said);
        if let Some(cut) = text.len().checked_sub(MOST_TEXT) {
            let cut = (cut..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
            text.replace_range(..cut, "...");
        }
        let mut found: Value =
            std::fs::read_to_string(answer.path()).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        if let Some(answer) = found.as_object_mut() {
            DETAILS.iter().for_each(|name| drop(answer.remove(*name)));
        }
        // 3 and 4 are answers, too: it does not fit, it grew.
        let is_error = found.is_null() || !matches!(status, Some(0 | 3 | 4));
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
    /// Of one that goes on: its request's id, and a notification.
    GoesOn(Value, Value),
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
            Event::GoesOn(id, notification) => {
                if calls.running.iter().any(|(running, _)| *running == id) {
                    println!("{notification}");
                }
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
                let token = parameters["_meta"].get("progressToken").cloned();
                return self.start(tool, id, arguments, folder, token).err().map(|why| failed(id, -32603, format!("{why:#}")));
            }
            _ => return Some(failed(id, -32601, format!("there is no method '{method}'"))),
        };
        Some(done(id, result))
    }

    /// From this thread: what it starts is ended where it is gone.
    fn start(
        &mut self,
        tool: &Tool,
        id: &Value,
        arguments: Vec<String>,
        folder: Option<PathBuf>,
        token: Option<Value>,
    ) -> Result<()> {
        let (child, answer) = tool.start(arguments, folder)?;
        self.running.push((id.clone(), Pid::from_child(&child)));
        let (id, ends) = (id.clone(), self.ends.clone());
        thread::spawn(move || {
            let began = Instant::now();
            let progress = |message: &str| {
                if let Some(token) = &token {
                    let params = json!({ "progressToken": token, "progress": began.elapsed().as_secs_f64(), "message": message });
                    let notification = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
                    ends.send(Event::GoesOn(id.clone(), notification)).ok();
                }
            };
            let answer = match Tool::shown(child, &answer, progress) {
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

pub fn is_called_by_agent() -> bool {
    std::env::var_os(ENDS_WITH_PARENT).is_some()
}

pub fn end_with_parent() {
    if is_called_by_agent() {
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).ok();
    }
}
