//! The printer of modules.

use super::literal::{elements, float, hexadecimal, quoted, word};
use super::numbering::{Numbering, data_of};
use super::{AXIS_ROLES, PARTIAL_KINDS, TYPED_ELEMENTS, VERSION, function_name, name_of};
use crate::{
    AxisId, Blob, Claim, Data, DataId, Dim, EVERY_STAGE, Initializer, Level, Mesh, Module, Node, Phase, Role,
    State, Tier, Type, ViewStep,
};
use std::fmt::Write;

/// Returns the text of a module. Ids that are out of range are printed in a form that does not parse.
pub fn print(module: &Module) -> String {
    let printer = Printer { module, names: Numbering::of(module) };
    let mut out = format!("trainyard-ir {VERSION}\n");
    let level = name_of(&Level::ALL, &module.level);
    let _ = writeln!(out, "module @{} {level}{} {{", word(&module.name), mesh_text(&module.mesh));
    for line in printer.pipeline().chain(printer.tables()).chain(printer.function()).chain(printer.roots()) {
        out.push_str("  ");
        out.push_str(&line);
        out.push('\n');
    }
    out.push_str("}\n");
    out
}

/// Structural equality: ids may differ, but the printed text may not.
impl PartialEq for Module {
    fn eq(&self, other: &Self) -> bool {
        print(self) == print(other)
    }
}

/// Returns `f32[8, 128] {dp, -} partial(sum tp)`: a type with its sharding, by the names of the mesh's axes.
pub fn type_text(mesh: &Mesh, ty: &Type) -> String {
    let dims: Vec<_> = ty.dims.iter().map(dim_text).collect();
    let mut out = format!("{}[{}]", ty.dtype, dims.join(", "));
    let axis = |&id: &AxisId| mesh.axes.get(id).map_or_else(|| format!("?{id}"), |axis| word(&axis.name));
    if ty.sharding.dims.iter().any(|axes| !axes.is_empty()) {
        let split = |axes: &[AxisId]| match axes {
            [] => "-".to_string(),
            axes => axes.iter().map(axis).collect::<Vec<_>>().join("*"),
        };
        let words: Vec<_> = ty.sharding.dims.iter().map(|axes| split(axes)).collect();
        let _ = write!(out, " {{{}}}", words.join(", "));
    }
    if let Some((kind, axes)) = &ty.sharding.partial {
        let names: Vec<_> = axes.iter().map(axis).collect();
        let _ = write!(out, " partial({} {})", name_of(&PARTIAL_KINDS, kind), names.join(", "));
    }
    out
}

fn dim_text(dim: &Dim) -> String {
    let symbols = dim.symbols();
    let number = (dim.coefficient() != 1 || symbols.is_empty()).then(|| dim.coefficient().to_string());
    let factors: Vec<_> = number.into_iter().chain(symbols.iter().map(|symbol| word(symbol))).collect();
    factors.join("*")
}

fn mesh_text(mesh: &Mesh) -> String {
    let axis = |axis: &crate::Axis| {
        let role = match Mesh::role(&axis.name) {
            Some(role) if role == axis.role => String::new(),
            _ => format!(" {}", name_of(&AXIS_ROLES, &axis.role)),
        };
        format!("{}={}{role}", word(&axis.name), axis.size)
    };
    let axes: Vec<_> = mesh.axes.values().map(axis).collect();
    if axes.is_empty() { String::new() } else { format!(" mesh [{}]", axes.join(", ")) }
}

/// Returns `stage 2`, or `every stage`; nothing for stage 0.
fn stage_text(stage: u32) -> Option<String> {
    match stage {
        0 => None,
        EVERY_STAGE => Some("every stage".to_owned()),
        _ => Some(format!("stage {stage}")),
    }
}

fn list<T: ToString>(items: &[T]) -> String {
    let items: Vec<_> = items.iter().map(T::to_string).collect();
    format!("[{}]", items.join(", "))
}

/// Returns `[transpose [1, 0], slice 0 2 3]`: the steps of a view; nothing for an empty view.
pub fn view_text(view: &[ViewStep]) -> String {
    let step = |step: &ViewStep| match step {
        ViewStep::Reshape(sizes) => format!("reshape {}", list(sizes)),
        ViewStep::Transpose(permutation) => format!("transpose {}", list(permutation)),
        ViewStep::Slice { dim, start, length } => format!("slice {dim} {start} {length}"),
        ViewStep::Pad { dim, after } => format!("pad {dim} {after}"),
        ViewStep::Cast(dtype) => format!("cast {dtype}"),
        ViewStep::Repeat(count) => format!("repeat {count}"),
    };
    let steps: Vec<_> = view.iter().map(step).collect();
    if steps.is_empty() { String::new() } else { format!("[{}]", steps.join(", ")) }
}

struct Printer<'m> {
    module: &'m Module,
    names: Numbering,
}

impl Printer<'_> {
    /// Returns the lines of the stages and the timetable.
    fn pipeline(&self) -> impl Iterator<Item = String> {
        let lines = self.module.pipeline.iter().flat_map(|pipeline| {
            let (schedule, placement) = (word(&pipeline.schedule), list(&pipeline.placement));
            let delays = if pipeline.is_asynchronous() {
                format!(" delays {}", list(&pipeline.delays))
            } else {
                String::new()
            };
            let microbatches = pipeline.microbatches;
            let first =
                format!("pipeline {schedule} microbatches {microbatches} stages {placement}{delays} {{");
            let ranks = pipeline.timetable.ranks.iter().map(|tasks| {
                let tasks: Vec<String> = tasks.iter().map(|task| task.to_string()).collect();
                format!("  rank {}", tasks.join(" "))
            });
            [first].into_iter().chain(ranks).chain(["}".to_owned()]).collect::<Vec<_>>()
        });
        lines.collect::<Vec<_>>().into_iter()
    }

    fn tables(&self) -> impl Iterator<Item = String> {
        let live = self.module.data.iter().filter(|(id, _)| self.names.is_live(*id));
        let data = live.map(|(id, data)| self.data(id, data));
        data.chain(self.module.states.values().map(|state| self.state(state)))
    }

    fn ty(&self, ty: &Type) -> String {
        type_text(&self.module.mesh, ty)
    }

    fn data(&self, id: DataId, data: &Data) -> String {
        let mut out = format!("data {} {} : {}", self.names.data(id), quoted(&data.name), self.ty(&data.ty));
        if let Some(claim) = &data.claim {
            let _ = write!(out, " {}", name_of(&Claim::ALL, claim));
        }
        if let Blob::Inline(bytes) = &data.blob {
            let whole = data.ty.bytes() == Some(bytes.len() as u64);
            if whole && data.ty.numel().is_some_and(|count| count <= TYPED_ELEMENTS) {
                let _ = write!(out, " = {}", list(&elements(data.ty.dtype, bytes)));
            } else {
                let _ = write!(out, " = hex \"{}\"", hexadecimal(bytes));
            }
        }
        out
    }

    fn state(&self, state: &State) -> String {
        let role = name_of(&Role::ALL, &state.role);
        let tier = match state.tier {
            Tier::Device => String::new(),
            tier => format!(" {}", tier.name()),
        };
        let stage = stage_text(state.stage).map_or(String::new(), |stage| format!(" {stage}"));
        let initializer = self.initializer(&state.initializer);
        let (name, ty) = (word(&state.name), self.ty(&state.ty));
        let view =
            if state.view.is_empty() { String::new() } else { format!(" view {}", view_text(&state.view)) };
        format!("state @{name} : {ty} {role}{tier}{stage} = {initializer}{view}")
    }

    fn initializer(&self, initializer: &Initializer) -> String {
        let row = |id: DataId| format!("data {}", self.names.data(id));
        match *initializer {
            Initializer::Data(id) => row(id),
            Initializer::Zeros => "zeros".into(),
            Initializer::Splat(bits) => format!("splat {}", float(bits)),
            Initializer::CopyOf(id) => match self.module.states.get(id) {
                Some(state) => format!("copy @{}", word(&state.name)),
                None => format!("copy @?{}", id.as_u32()),
            },
            Initializer::Normal { std, data: None } => format!("normal {}", float(std)),
            Initializer::Normal { std, data: Some(id) } => format!("normal {} {}", float(std), row(id)),
            Initializer::Fill { value, data } => format!("fill {} {}", float(value), row(data)),
            Initializer::Noisy { std, data } => format!("noisy {} {}", float(std), row(data)),
        }
    }

    fn function(&self) -> impl Iterator<Item = String> {
        let name = function_name(self.module.level);
        let (inputs, states) = (&self.module.inputs, &self.module.states);
        let empty = inputs.is_empty() && states.is_empty();
        let first = format!("func @{name}({}", if empty { ") {" } else { "" });
        let inputs = inputs.iter().map(|input| {
            let batched = if input.batched { " batched" } else { "" };
            let ty = self.ty(self.module.ty(input.value));
            format!("  {} {}{batched} : {ty},", self.names.value(input.value), quoted(&input.name))
        });
        let states = states
            .values()
            .map(|state| format!("  {} = @{},", self.names.value(state.input), word(&state.name)));
        let open = (!empty).then(|| ") {".to_string());
        let nodes = self.module.nodes().map(|(_, node)| format!("  {}", self.node(node)));
        [first].into_iter().chain(inputs).chain(states).chain(open).chain(nodes).chain(["}".to_string()])
    }

    fn node(&self, node: &Node) -> String {
        let mut out = self.names.node(node);
        // A data row is shown by its printed number, not by its id.
        let attribute = |(name, text): (&str, String)| match data_of(node) {
            Some(id) if name == "data" => format!("{name} = {}", self.names.data(id)),
            _ => format!("{name} = {text}"),
        };
        let attributes: Vec<_> = node.op.attributes().into_iter().map(attribute).collect();
        if !attributes.is_empty() {
            let _ = write!(out, " {{{}}}", attributes.join(", "));
        }
        let types: Vec<_> = node.results.iter().map(|&id| self.ty(self.module.ty(id))).collect();
        if !types.is_empty() {
            let _ = write!(out, " : {}", types.join(", "));
        }
        let _ = write!(out, " !{{{}}}", self.provenance(node));
        out
    }

    fn provenance(&self, node: &Node) -> String {
        let mut parts = vec![name_of(&Phase::ALL, &node.phase).to_string()];
        parts.extend(stage_text(node.stage));
        parts.extend((node.copy != 0).then(|| format!("copy {}", node.copy)));
        parts.extend((node.place != Tier::Device).then(|| format!("on {}", node.place.name())));
        parts.extend((!node.origin.is_empty()).then(|| format!("origin {}", quoted(&node.origin))));
        parts.extend((!node.by.is_empty()).then(|| format!("by {}", word(&node.by))));
        parts.join(", ")
    }

    fn roots(&self) -> impl Iterator<Item = String> {
        let outputs = self.module.outputs.iter();
        let outputs = outputs
            .map(|output| format!("output {} = {}", quoted(&output.name), self.names.value(output.value)));
        let updated = self.module.states.values().filter_map(|state| Some((state, state.output?)));
        let updates = updated
            .map(|(state, value)| format!("update @{} = {}", word(&state.name), self.names.value(value)));
        outputs.chain(updates)
    }
}
