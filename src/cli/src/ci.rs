//! `vramlab ci`: the cases of `vramlab.toml`, at a base and as the project is now.

use super::terminal::{progress, write_json};
use anyhow::{Context, Result, bail, ensure};
use base::print;
use base::units::Bytes;
use clap::Args;
use rehearse::ci::{Case, CaseRow, Project, failed_at, status};
use rehearse::show::ci::{annotations, markdown, text};
use rehearse::versions::bisect::Worktree;
use rehearse::versions::{Base, Environments, Trial};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Flags of `vramlab ci`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 nothing grew by more than vramlab.toml allows, 3 a case does not fit any more, or is new and does not, 4 one grew, 1 one fails, 2 the\nquestion is wrong. docs/ci.md has a vramlab.toml and a workflow."
)]
pub struct CiOptions {
    /// Names of cases; all of them without one
    #[arg(value_name = "CASE")]
    cases: Vec<String>,

    /// What is rehearsed
    #[arg(long, value_name = "FILE", default_value = "vramlab.toml")]
    config: PathBuf,

    /// The commit that it is compared with, where the two parted; of a pull request on GitHub its target, else HEAD: what is not committed
    #[arg(long, value_name = "COMMIT")]
    base: Option<String>,

    /// Write the same as the text of a comment
    #[arg(long, value_name = "FILE")]
    comment: Option<PathBuf>,

    /// Write the rows as JSON to a file, or with - to the standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Keep the answer and the capture of each case, and what was printed
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// The most that environments may take in the cache
    #[arg(long, value_name = "SIZE", default_value = "20GiB")]
    cache_size: Bytes,

    /// Print nothing but the table
    #[arg(long)]
    quiet: bool,
}

/// A case is ended after as long.
const LONGEST_SECONDS: &str = "1800";

/// One of the two trees: where its files are, and what its packages are imported from.
struct Side<'a> {
    name: &'static str,
    root: PathBuf,
    imports: Vec<PathBuf>,
    project: &'a Project,
}

impl Side<'_> {
    /// Requirements of this tree, one a line.
    fn requirements(&self) -> Result<Vec<String>> {
        let Some(file) = &self.project.requirements else { return Ok(Vec::new()) };
        let text = fs::read_to_string(self.root.join(file)).with_context(|| format!("{} of the {}", file.display(), self.name))?;
        let lines = text.lines().map(|line| line.split(" #").next().unwrap_or(line).trim());
        let lines: Vec<String> = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(String::from).collect();
        match lines.iter().find(|line| line.starts_with('-')) {
            Some(flag) => bail!("{}: '{flag}' is no requirement: write packages and their versions", file.display()),
            None => Ok(lines),
        }
    }

    fn rehearse(
        &self,
        case: &Case,
        gpu: &str,
        name: &str,
        options: &CiOptions,
        (out, zygotes): (&Path, &Path),
    ) -> Result<Result<rehearse::check::Earlier>> {
        let words = shlex::split(&case.command).context("the command has a quote without its end")?;
        let flags = shlex::split(&case.flags).context("the flags have a quote without its end")?;
        let base = Base::of(&words.into_iter().map(OsString::from).collect::<Vec<OsString>>())?;
        let flags = ["--gpu", gpu, "--timeout", LONGEST_SECONDS].map(String::from).into_iter().chain(flags);
        let program = env::current_exe().context("finding this program's own file")?;
        let trial = Trial { program, flags: flags.map(OsString::from).collect(), base: &base, out, zygotes: Some(zygotes) };
        let (name, folder) = (format!("{}-{name}", self.name), self.root.join(&case.directory));
        // What one of the two trees lacks says nothing of the other.
        let python = || {
            ensure!(folder.is_dir(), "there is no folder '{}' in the {}", case.directory.display(), self.name);
            let with = self.requirements()?;
            if with.is_empty() {
                return Ok(base.python.clone());
            }
            let (limit, progress) = (options.cache_size.0, progress(options.quiet, false));
            Ok(Environments { base: &base, python: None, with, has_no_dependencies: false, limit, progress }.with(&[])?.python)
        };
        match python() {
            Ok(python) => trial.run(&name, &python, Some(&folder), &self.imports, &[]),
            Err(why) => Ok(Err(why)),
        }
    }
}

/// Rehearses each case twice, says what changed, and gives the exit status.
pub fn ci(options: &CiOptions) -> Result<u8> {
    let project = Project::read(&options.config)?;
    if let Some(unknown) = options.cases.iter().find(|name| !project.cases.contains_key(*name)) {
        let known: Vec<&str> = project.cases.keys().map(String::as_str).collect();
        bail!("there is no case {unknown} in {}; there are: {}", options.config.display(), known.join(", "));
    }
    let here = fs::canonicalize(&options.config).context("finding the project's folder")?;
    let here = here.parent().context("a file is in a folder")?;
    let of_github = env::var("GITHUB_BASE_REF").ok().filter(|name| !name.is_empty()).map(|name| format!("origin/{name}"));
    let asked = options.base.clone().or(of_github).unwrap_or_else(|| "HEAD".to_string());
    let worktree = Worktree::parted(here, &asked)
        .with_context(|| format!("the base {asked}; in a workflow, actions/checkout has it with fetch-depth: 0"))?;
    let [temporary, zygotes] = [tempfile::tempdir(), tempfile::tempdir()].map(|made| made.context("making a temporary folder"));
    let (temporary, zygotes) = (temporary?, zygotes?);
    let out = options.out.as_deref().unwrap_or(temporary.path());
    fs::create_dir_all(out).with_context(|| format!("--out {}", out.display()))?;
    let out = fs::canonicalize(out).with_context(|| format!("--out {}", out.display()))?;
    let base_root = worktree.place_of(here).unwrap_or_else(|| worktree.path());
    let imports =
        |root: &Path| [root.join("src"), root.to_owned()].into_iter().filter(|folder| folder.is_dir()).collect::<Vec<PathBuf>>();
    let sides = [("base", base_root), ("head", here.to_owned())].map(|(name, root)| Side {
        name,
        imports: imports(&root),
        root,
        project: &project,
    });
    let say = progress(options.quiet, false);
    let mut rows = Vec::new();
    for (name, case) in project.cases.iter().filter(|(name, _)| options.cases.is_empty() || options.cases.contains(name)) {
        for gpu in case.gpu.names() {
            let called = format!("{name}-{gpu}").replace('/', "-");
            let rehearse = |side: &Side| {
                say(&format!("{name} on {gpu}: {}", side.name));
                let found = side.rehearse(case, gpu, &called, options, (&out, zygotes.path()))?;
                // A worktree's name says nothing.
                let root = side.root.display().to_string();
                let named = |why| anyhow::anyhow!(format!("{why:#}").replace(&root, &format!("the {}", side.name)));
                anyhow::Ok(found.map_err(named))
            };
            let (before, after) = (rehearse(&sides[0])?, rehearse(&sides[1])?);
            let place = after.is_err().then(|| failed_at(&out.join(format!("head-{called}.json")))).flatten();
            rows.push(CaseRow { place, ..CaseRow::of(name, gpu, before, after, &project)? });
        }
    }
    ensure!(!rows.is_empty(), "no case was rehearsed");
    rows.sort_by(|a, b| (a.state, &a.case).cmp(&(b.state, &b.case)));
    let base = format!("{asked} ({})", worktree.subject("HEAD"));
    print!("{}", text(&rows, &base));
    let page = markdown(&rows, &base);
    if let Some(file) = env::var_os("GITHUB_STEP_SUMMARY").map(PathBuf::from) {
        let mut summary = fs::OpenOptions::new().create(true).append(true).open(&file)?;
        summary.write_all(page.as_bytes()).with_context(|| format!("writing {}", file.display()))?;
    }
    if let Some(file) = &options.comment {
        fs::write(file, &page).with_context(|| format!("writing {}", file.display()))?;
    }
    if let Some(file) = &options.json {
        write_json(file, &rows)?;
    }
    if env::var_os("GITHUB_ACTIONS").is_some() {
        // Lines are named from the clone's top. Only these are the runner's to obey, so that they go around what escapes all else; nobody may be listening.
        std::io::stdout().write_all(annotations(&rows, &worktree.top()).as_bytes()).ok();
    }
    Ok(status(&rows))
}
