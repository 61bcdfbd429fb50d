//! The hardware and libraries of a machine, as `doctor` writes them: as text, and as JSON.

use cuda::cudnn::TAKEN;
use cuda::gpu::links::Link;
use cuda::libraries::{FOLDERS, Folders, Library, NotOpened, Opened};
use cuda::probe::{self, Probe, Unavailable};
use ir::units;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The hardware and libraries of a machine. docs/GPU.md lists the keys of its JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Facts {
    /// Threads of the processor.
    pub threads: usize,
    /// The values of `--device` that run on the processor.
    pub devices: Vec<&'static str>,
    /// NVIDIA's driver.
    pub driver: Driver,
    /// The GPUs, by their number.
    pub gpus: Vec<Gpu>,
    /// Every link from one GPU to another.
    pub links: Vec<Link>,
    /// The other libraries.
    pub libraries: Vec<Found>,
    /// Folders that libraries were looked for in besides the system's own.
    pub looked_in: Vec<PathBuf>,
}

/// NVIDIA's driver.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Driver {
    #[serde(flatten)]
    pub library: Found,
    /// The newest CUDA that it supports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<String>,
}

/// A library. If it cannot be used, `error` has the reason.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Found {
    pub name: &'static str,
    pub file: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A GPU.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Gpu {
    pub gpu: usize,
    pub name: String,
    /// `9.0`
    pub compute_capability: String,
    pub multiprocessors: i32,
    pub total_bytes: u64,
    /// Bytes that no process uses; `None` if the GPU cannot be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// The reason why the GPU cannot be opened, or why kernels do not run on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The memory of a GPU: free bytes, and all bytes.
pub(super) type Memory = Result<(u64, u64), String>;

impl Facts {
    /// Collects the facts from a probe. The processor's threads and devices, the driver's release, the GPUs' memory and their links are given apart.
    pub(super) fn of(
        (threads, devices): (usize, Vec<&'static str>),
        folders: &Folders,
        probe: &Probe,
        release: Option<String>,
        memory: impl Fn(usize) -> Memory,
        links: Vec<Link>,
    ) -> Self {
        let libraries = probe.libraries.iter().map(|(library, opened)| Found::of(*library, opened.as_ref()));
        let looked_in = folders.given.iter().chain(&folders.installed).cloned().collect();
        let (driver, gpus) = match &probe.driver {
            Ok(driver) => {
                let gpus = driver.devices.iter().enumerate();
                let gpus = gpus.map(|(gpu, facts)| Gpu::of(gpu, facts, memory(gpu))).collect();
                let found = Found::of(Library::Driver, Ok(&driver.opened));
                let library = Found { version: release, ..found };
                (Driver { library, cuda: Some(driver.version.to_string()) }, gpus)
            }
            Err(error) => {
                let library =
                    Found { version: release, ..Found::without(Library::Driver, unavailable(error)) };
                (Driver { library, cuda: None }, vec![])
            }
        };
        Self { threads, devices, driver, gpus, links, libraries: libraries.collect(), looked_in }
    }

    /// The facts as text.
    pub(super) fn text(&self) -> String {
        let mut text =
            line("processor", &format!("{} threads, --device {}", self.threads, self.devices.join(", ")));
        text += &self.driver.text();
        text.extend(self.gpus.iter().map(Gpu::text));
        text += &links(&self.links);
        text.extend(self.libraries.iter().map(|found| line(found.name, &found.text(found.version.clone()))));
        text += &self.runs_by_cudnn();
        let looked: String = self.looked_in.iter().map(|folder| format!(", {}", folder.display())).collect();
        text += &format!(
            "\nlibraries were searched in the system's folders{looked}; {FOLDERS}=FOLDER:FOLDER adds \
                 folders\n"
        );
        text
    }

    /// A line about the work that cuDNN does, or that is not done without cuDNN.
    fn runs_by_cudnn(&self) -> String {
        let cudnn = self.libraries.iter().find(|found| found.name == Library::Cudnn.name());
        cudnn.map_or_else(String::new, |found| match &found.error {
            None => line("  cuDNN runs", TAKEN),
            Some(_) => {
                line("  no cuDNN", "convolutions cannot run on a GPU; attention runs in our own kernels")
            }
        })
    }
}

/// A line, its subject first.
fn line(subject: &str, text: &str) -> String {
    format!("{subject:15}{text}\n")
}

fn unavailable(error: &Unavailable) -> String {
    match error {
        Unavailable::Library(error) => not_opened(error),
        error => error.to_string(),
    }
}

/// The reason why a library was not opened. The searched folders are left out here: they are printed once, at the end.
fn not_opened(error: &NotOpened) -> String {
    match error {
        NotOpened::Missing { library, .. } => {
            format!("{} was not found: {}", library.file(), library.source())
        }
        error => error.to_string(),
    }
}

impl Found {
    fn of(library: Library, opened: Result<&Opened, &NotOpened>) -> Self {
        match opened {
            Ok(opened) => {
                let (version, path) = (opened.version.clone(), Some(opened.path.clone()));
                Self { name: library.name(), file: library.file(), version, path, error: None }
            }
            Err(error) => Self::without(library, not_opened(error)),
        }
    }

    fn without(library: Library, error: String) -> Self {
        Self { name: library.name(), file: library.file(), error: Some(error), ..Self::default() }
    }

    fn text(&self, version: Option<String>) -> String {
        let path = self.path.as_ref().map(|path| path.display().to_string());
        let parts: Vec<String> = version.into_iter().chain(path).chain(self.error.clone()).collect();
        parts.join(", ")
    }
}

impl Driver {
    fn text(&self) -> String {
        let cuda = self.cuda.as_ref().map(|version| format!("CUDA {version}"));
        let parts: Vec<String> = self.library.version.clone().into_iter().chain(cuda).collect();
        let version = (!parts.is_empty()).then(|| parts.join(", "));
        line(self.library.name, &self.library.text(version))
    }
}

impl Gpu {
    fn of(gpu: usize, facts: &probe::DeviceFacts, memory: Memory) -> Self {
        let (major, minor) = facts.capability;
        Self {
            gpu,
            name: facts.name.clone(),
            compute_capability: format!("{major}.{minor}"),
            multiprocessors: facts.multiprocessors,
            total_bytes: facts.memory,
            free_bytes: memory.as_ref().ok().map(|(free, _)| *free),
            error: facts.check().map_err(|old| old.to_string()).and(memory).err(),
        }
    }

    fn text(&self) -> String {
        let facts = format!(
            "{}, compute capability {}, {} multiprocessors, {}",
            self.name,
            self.compute_capability,
            self.multiprocessors,
            units::bytes(self.total_bytes),
        );
        let free = self.free_bytes.map(|free| format!("{} free", units::bytes(free)));
        let parts: Vec<String> = [Some(facts), free, self.error.clone()].into_iter().flatten().collect();
        line(&format!("  GPU {}", self.gpu), &parts.join(", "))
    }
}

/// Lists the links, with equal links in one line.
fn links(links: &[Link]) -> String {
    let mut alike: BTreeMap<(i32, String), Vec<String>> = BTreeMap::new();
    for link in links {
        let way = if link.peer_access { "direct" } else { "through the host's memory" };
        let atomics = if link.native_atomics { ", with atomics: NVLink" } else { "" };
        let pair = format!("{}-{}", link.from, link.to);
        alike.entry((link.performance_rank, format!("{way}{atomics}"))).or_default().push(pair);
    }
    let lines = alike
        .into_iter()
        .map(|((rank, kind), pairs)| line("  links", &format!("{kind}, rank {rank}: {}", pairs.join(" "))));
    lines.collect()
}
