//! Gives a section's commands to the driver: one by one, or as a graph that was captured before.
//!
//! Every run of a section gives the driver the same commands, because learning rate, step and loss scale are values on the device. Only
//! one thing differs: a step's first microbatch overwrites sums, and later microbatches add to them. So two graphs are enough, one for
//! each case.

use super::device::Cuda;
use super::driver::{Driver, DriverError, Graph};
use super::pace::{Pace, Stretch, StretchState};
use super::program::Stream;
use program::Part;
use program::device::{DeviceError, ProgramId};
use std::ops::Range;

/// The advice in the error of a refused capture.
const WITHOUT: &str =
    "; with TRAINYARD_GRAPHS=0 a run captures no CUDA graphs, and launches its commands one by one";

impl<D: Driver> Cuda<D> {
    /// Returns the device with another pace.
    pub fn at(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Runs some instructions of a part, at the device's pace; then every stream waits for all others. Messages are in no graph,
    /// because other streams than the graph's carry them.
    pub(super) fn perform(
        &mut self,
        id: ProgramId,
        part: Part,
        instructions: Range<usize>,
    ) -> Result<(), DeviceError> {
        self.host.check()?;
        let mut start = instructions.start;
        for message in self.messages(id, part, &instructions) {
            if start < message {
                self.perform_stretch(id, part, start..message)?;
            }
            self.execute(id, part, message..message + 1).map_err(|error| self.blamed(error))?;
            self.join(id)?;
            start = message + 1;
        }
        if start < instructions.end || instructions.is_empty() {
            self.perform_stretch(id, part, start..instructions.end)?;
        }
        Ok(())
    }

    /// Runs some instructions without messages.
    fn perform_stretch(
        &mut self,
        id: ProgramId,
        part: Part,
        instructions: Range<usize>,
    ) -> Result<(), DeviceError> {
        let bounds = [instructions.start, instructions.end];
        let (adds, blocks) = (self.adds(id), self.present_turn(id).blocks.clone());
        let stretch = Stretch { program: id, part, instructions: bounds, adds, blocks };
        // Commands in a graph get no time stamps.
        let graph = match self.known.get(&stretch) {
            _ if self.pace != Pace::Graphs || !self.clocks.is_empty() || instructions.is_empty() => None,
            None => {
                self.known.insert(stretch, StretchState::Run);
                None
            }
            Some(StretchState::As(graph)) => Some(*graph),
            Some(StretchState::Run) => {
                let graph = self.capture(id, part, instructions.clone());
                let graph = graph.map_err(|error| self.uncaptured(error))?;
                self.known.insert(stretch, StretchState::As(graph));
                Some(graph)
            }
        };
        match graph {
            None => self.execute(id, part, instructions).map_err(|error| self.blamed(error))?,
            Some(graph) => {
                let replayed = self.driver.replay(graph);
                replayed.map_err(|error| self.uncaptured(DeviceError::driver(error)))?;
            }
        }
        self.join(id)
    }

    /// Captures a stretch: the other streams begin at the main stream, and end in it.
    fn capture(
        &mut self,
        id: ProgramId,
        part: Part,
        instructions: Range<usize>,
    ) -> Result<Graph, DeviceError> {
        self.driver.begin_capture().map_err(DeviceError::driver)?;
        let given = self.part(id).map_err(DeviceError::driver);
        let given = given.and_then(|()| self.execute(id, part, instructions));
        let given = given.and_then(|()| self.gather(id).map_err(DeviceError::driver));
        let graph = self.driver.end_capture();
        given.and_then(|()| graph.map_err(DeviceError::driver))
    }

    /// Lets every stream wait for all others.
    pub(super) fn join(&mut self, id: ProgramId) -> Result<(), DeviceError> {
        self.gather(id).and_then(|()| self.part(id)).map_err(|error| self.refused(error))
    }

    /// Lets the main stream wait for all others.
    fn gather(&mut self, id: ProgramId) -> Result<(), DriverError> {
        for stream in Stream::ALL.into_iter().filter(|stream| *stream != Stream::Main) {
            let end = self.end_of(id, stream);
            self.driver.record(stream, end)?;
            self.driver.wait(Stream::Main, end)?;
        }
        Ok(())
    }

    /// Lets the other streams wait for the main stream.
    fn part(&mut self, id: ProgramId) -> Result<(), DriverError> {
        let end = self.end_of(id, Stream::Main);
        self.driver.record(Stream::Main, end)?;
        let others = Stream::ALL.into_iter().filter(|stream| *stream != Stream::Main);
        others.into_iter().try_for_each(|stream| self.driver.wait(stream, end))
    }

    /// Returns the error of a capture or a replay. If the device still works, the error says how to run without graphs.
    fn uncaptured(&self, error: DeviceError) -> DeviceError {
        let mut error = self.blamed(error);
        if let DeviceError::Driver { late: false, message, .. } = &mut error {
            message.push_str(WITHOUT);
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Host, Order};
    use comm::local::{AtWork, Local};
    use program::device::{Device, step};
    use program::lower::{LowerOptions, lower, lower_rank};
    use program::{Program, Section};
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::thread;

    /// Returns a program of two products. The second is added up over microbatches.
    fn program() -> Arc<Program> {
        let text = r#"trainyard-ir 1
            module @m training {
              state @w : f32[4, 4] parameter = zeros
              func @train(%0 = @w, %1 "x" batched : f32[8, 4]) {
                %2 = contract %1, %0 {lhs = mk, rhs = kn, out = mn} : f32[8, 4] !{fwd}
                %3 = exp %2 : f32[8, 4] !{fwd}
                %4 = contract %1, %3 {lhs = mk, rhs = mn, out = kn} : f32[4, 4] !{bwd}
                %5 = accumulate %4 : f32[4, 4] !{update}
                %6 = add %0, %5 : f32[4, 4] !{update}
              }
              update @w = %6
            }"#;
        let module = ir::text::parse(text).unwrap();
        Arc::new(lower(&module, &LowerOptions::of(crate::TARGET)).unwrap())
    }

    fn device() -> Cuda<Host> {
        Cuda::new(Host::new(Order::default()), vec![program()]).unwrap()
    }

    /// Runs a step of two microbatches: the first overwrites sums, the second adds to them.
    fn run(device: &mut Cuda<Host>) -> Result<(), DeviceError> {
        let x = vec![vec![0; 8 * 4 * 4]];
        step(device, ProgramId(0), &[x.clone(), x]).map(|_| ())
    }

    #[test]
    #[ignore = "needs a C++ compiler"]
    fn a_stretch_runs_before_it_is_captured() {
        let mut device = device();
        for _ in 0..3 {
            run(&mut device).unwrap();
        }
        let graphs = device.known.values().filter(|known| matches!(known, StretchState::As(_))).count();
        assert_eq!(graphs, device.known.len());
        assert!(graphs >= 3, "both kinds of microbatch, and the update: {graphs}");
    }

    /// A program of two stages. Stage 0 keeps an activation for backward, of two microbatches at once.
    const TWO_STAGES: &str = r#"trainyard-ir 1
        module @m training {
          pipeline "1f1b" microbatches 4 stages [0, 1] {
            rank F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 B0.3
            rank F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3
          }
          state @w : f32[4] parameter = zeros
          func @train(%0 = @w, %1 "x" batched : f32[8, 4]) {
            %2 = mul %1, %0 : f32[8, 4] !{fwd}
            %3 = exp %2 : f32[8, 4] !{fwd}
            %4 = transfer %3 : f32[8, 4] !{fwd, stage 1}
            %5 = tanh %4 : f32[8, 4] !{bwd, stage 1}
            %6 = transfer %5 : f32[8, 4] !{bwd}
            %7 = mul %6, %3 : f32[8, 4] !{bwd}
            %8 = reduce %7 {kind = sum, dims = [0], keep = false} : f32[4] !{bwd}
            %9 = accumulate %8 : f32[4] !{update}
            %10 = add %0, %9 : f32[4] !{update}
          }
          update @w = %10
        }"#;

    /// Returns both ranks after three steps of four microbatches with different numbers.
    fn two_stages(pace: Pace) -> Vec<Cuda<Host>> {
        let module = ir::text::parse(TWO_STAGES).unwrap();
        let options = LowerOptions::of(crate::TARGET);
        let input = |number: f32| vec![number.to_le_bytes().repeat(8 * 4)];
        let microbatches = [-0.01, -0.02, -0.03, -0.04].map(input);
        let local = Local::new(2);
        let hosts = Host::ranks(Order::default(), [0, 1].map(|rank| local.recorded(rank)).to_vec());
        thread::scope(|scope| {
            let run = |(at_work, host): (AtWork, Host)| {
                let (module, options, microbatches) = (&module, &options, &microbatches);
                scope.spawn(move || {
                    let rank = at_work.rank();
                    let program = Arc::new(lower_rank(module, rank as u32, options).unwrap());
                    let programs = vec![crate::lower::lower(program).unwrap()];
                    let mut device = Cuda::of_rank(host, programs, rank, None).unwrap().at(pace);
                    for _ in 0..3 {
                        step(&mut device, ProgramId(0), microbatches).unwrap();
                    }
                    device.settle().unwrap();
                    device
                })
            };
            let threads: Vec<_> = local.begin().into_iter().zip(hosts).map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// Two microbatches that add to sums lie in different slots: the graph of the first would compute with the activations of the
    /// second.
    #[test]
    #[ignore = "needs a C++ compiler"]
    fn each_slot_of_a_pipeline_has_graphs_of_its_own() {
        let (ranks, one_by_one) = (two_stages(Pace::Graphs), two_stages(Pace::Commands));
        let weights = |ranks: &[Cuda<Host>]| ranks[0].read_state(ProgramId(0), 0).unwrap().into_owned();
        assert_eq!(weights(&ranks), weights(&one_by_one));
        assert!(
            weights(&ranks)
                .chunks(4)
                .all(|number| f32::from_le_bytes(number.try_into().unwrap()).is_finite())
        );
        for (device, slots) in ranks.iter().zip([2, 1]) {
            assert!(device.known.values().all(|known| matches!(known, StretchState::As(_))));
            let of_turns = device.known.keys().filter(|stretch| stretch.part == Part::Microbatch);
            let places: BTreeSet<_> =
                of_turns.map(|stretch| &stretch.blocks).filter(|own| !own.is_empty()).collect();
            assert_eq!(places.len(), slots, "{places:?}");
        }
    }

    /// The stretch that adds is marked as run, though only the same stretch without adding has run.
    #[test]
    #[ignore = "needs a C++ compiler"]
    fn a_capture_of_a_stretch_that_never_ran_is_refused() {
        let mut device = device();
        let count = device.program(ProgramId(0)).section(Section::Microbatch).len();
        let (program, part, instructions) = (ProgramId(0), Part::Microbatch, [0, count]);
        let stretch = Stretch { program, part, instructions, adds: true, blocks: Arc::from([]) };
        device.known.insert(stretch, StretchState::Run);
        let error = run(&mut device).unwrap_err().to_string();
        assert!(
            error.contains("the multiplication [4, 8] [8, 4] was never run outside of a capture"),
            "{error}"
        );
    }
}
