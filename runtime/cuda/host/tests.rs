//! Tests that calls which a GPU cannot carry out return errors, and do not panic.

use super::*;
use crate::lower::lower;
use crate::program::Task;
use program::lower::LowerOptions;
use program::{Program, Section};

/// Returns a program of a convolution and a product.
fn program() -> Arc<Program> {
    let text = r#"trainyard-ir 1
        module @m placed {
          func @train(%0 "x" : f32[1, 2, 8, 8], %1 "w" : f32[3, 2, 3, 3], %2 "a" : f32[8, 4], %3 "b" : f32[4, 4]) {
            %4 = conv %0, %1 {strides = [1, 1], dilations = [1, 1], pads = [0, 0, 0, 0]} : f32[1, 3, 6, 6]
            %5 = contract %2, %3 {lhs = mk, rhs = kn, out = mn} : f32[8, 4]
          }
          output "y" = %4
          output "z" = %5
        }"#;
    let module = ir::text::parse(text).unwrap();
    let options = LowerOptions::of(crate::TARGET);
    Arc::new(program::lower::lower(&module, &options).unwrap())
}

/// Returns the streams that take a call, and the refusals of the others.
fn taken(mut call: impl FnMut(&mut Host, Stream) -> Result<(), DriverError>) -> (Vec<Stream>, Vec<String>) {
    let mut host = Host::new(Order::default());
    let (mut taken, mut refusals) = (vec![], vec![]);
    for stream in Stream::ALL {
        match call(&mut host, stream) {
            Ok(()) => taken.push(stream),
            Err(error) => refusals.push(error.0),
        }
    }
    (taken, refusals)
}

#[test]
fn a_product_on_a_third_stream_is_an_error() {
    let cuda = lower(program()).unwrap();
    let multiply = cuda.sections.iter().flatten().find_map(|command| match &command.task {
        Task::Multiply(multiply) => Some(multiply),
        _ => None,
    });
    let at = Address(0);
    let places =
        MultiplyPlaces { lhs: at, rhs: at, out: at, bias: None, addend: None, aux: None, sums: None };
    let (streams, refusals) = taken(|host, stream| host.multiply(stream, multiply.unwrap(), places, false));
    assert_eq!(streams, [Stream::Main, Stream::Side]);
    let told = "a multiplication on the exchange stream: only the main stream and the side stream have a workspace of cuBLASLt";
    assert_eq!((&*refusals[0], refusals.len()), (told, 5));
}

/// cuDNN has one workspace, so two streams would write it at once.
#[test]
fn an_instruction_of_cudnn_on_another_stream_than_the_main_one_is_an_error() {
    let program = program();
    let instruction = &program.section(Section::Microbatch).iter().find(|one| one.name() == "conv").unwrap();
    let (arena, constants, host) = (Address(0), Address(0), Address(0));
    let memories = Memories { arena, constants, host, blocks: Arc::from([]) };
    let task = LibraryTask { instruction, memories: &memories };
    let (streams, refusals) = taken(|host, stream| host.library(stream, task));
    assert_eq!(streams, [Stream::Main]);
    let told = "`conv` on the side stream: only the main stream has a workspace of cuDNN";
    assert_eq!((&*refusals[0], refusals.len()), (told, 6));
}

#[test]
fn a_kernel_and_a_graph_that_are_not_there_are_errors() {
    let mut host = Host::new(Order::default());
    let launch = Launch { kernel: 0, grid: [1, 1, 1], block: 32, arguments: vec![] };
    let error = host.launch(Stream::Main, Loaded(0), &launch, &[]).unwrap_err();
    assert_eq!(error.0, "a kernel that was not loaded");
    assert_eq!(host.replay(Graph(0)).unwrap_err().0, "a CUDA graph that was not captured");
}
