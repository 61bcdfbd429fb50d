//! A few kernels as they are written for GPT-2 in bf16, and their launches, so that a review sees the effect of a change on them.
//! `UPDATE_EXPECT=1` rewrites them.

use cuda::lower::lower;
use cuda::program::{CudaProgram, Kernel, Launch, Task};
use expect_test::{Expect, expect};
use ir::DType;
use passes::precision::Precision;
use program::lower::LowerOptions;
use std::sync::{Arc, LazyLock};
use testing::models::{self, adamw, done};
use trainyard::lowering;
use trainyard::pipeline::CompilationPlan;

static GPT2: LazyLock<CudaProgram> = LazyLock::new(|| {
    let precision = Precision { compute: DType::BF16, ..Precision::default() };
    let fixture = &models::GPT2_DYNAMO;
    let subject = fixture.compiled(
        fixture.batch,
        CompilationPlan { optimizer: adamw(), precision, ..CompilationPlan::default() },
    );
    let options = LowerOptions::of(cuda::TARGET);
    done(lower(Arc::new(done(lowering::lower(&subject.compilation.training, &options)))))
});

/// The launches of a kernel, in order.
fn launches(index: usize) -> Vec<&'static Launch> {
    let commands = GPT2.sections.iter().flatten();
    let launches = commands.filter_map(|command| match &command.task {
        Task::Launch(launch) => Some(launch),
        _ => None,
    });
    launches.filter(|launch| launch.kernel == index).collect()
}

/// Checks a kernel: of the kernels with this name before the hash, the longest for which `is_it` is true.
fn check(name: &str, is_it: impl Fn(&Kernel) -> bool, expected: &Expect) {
    let own = |kernel: &Kernel| kernel.name.rsplit_once('_').is_some_and(|(own, _)| own == name);
    let kernels = GPT2.kernels.iter().enumerate().filter(|(_, kernel)| own(kernel) && is_it(kernel));
    let longest = kernels.max_by_key(|(_, kernel)| (kernel.text.len(), &kernel.text));
    let (index, kernel) = longest.unwrap_or_else(|| {
        let names: Vec<&str> = GPT2.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        panic!("no `{name}` among {names:?}")
    });
    let launches = launches(index);
    let Launch { grid: [x, y, z], block, .. } = launches[0];
    let how = format!("// {} launches, the first of {x} x {y} x {z} blocks of {block}", launches.len());
    expected.assert_eq(&format!("{how}\n{}", kernel.text.replace(&kernel.name, name)));
}

#[test]
fn the_longest_elementwise_chain_of_bf16() {
    let wide = |kernel: &Kernel| kernel.text.contains("Pack<bf16, 8> r0;");
    check(
        "chain",
        wide,
        &expect![[r#"
            // 1 launches, the first of 4 x 1 x 1 blocks of 256
            KERNEL(256) chain(const bf16* a0, const bf16* a1, bf16* a2) {
                const u32 first = (u32)thread_index();
                if (first >= 1024) return;
                u32 rest = first;
                const i64 i1 = (i64)(rest % 512u) * 8;
                rest /= 512u;
                const i64 i0 = (i64)rest * 1;
                static_assert(in_packs<bf16, 8, 4096>, "packs are not aligned");
                const Pack<bf16, 8> p0 = load<8>(a0 + i0 * 4096 + i1 * 1);
                static_assert(in_packs<bf16, 8, 0>, "packs are not aligned");
                const Pack<bf16, 8> p1 = load<8>(a1 + i1 * 1);
                Pack<bf16, 8> r0;
                #pragma unroll
                for (int e = 0; e < 8; e++) {
                    const float x0 = widen(p0.at[e]);
                    const float x1 = widen(p1.at[e]);
                    const float t0 = rounded<bf16>(x0 + x1);
                    r0.at[e] = narrow<bf16>(t0);
                }
                static_assert(in_packs<bf16, 8, 4096>, "packs are not aligned");
                store(a2 + i0 * 4096 + i1 * 1, r0);
            }
        "#]],
    );
}

#[test]
fn a_layer_norms_gradient_that_takes_in_what_goes_past_it() {
    check(
        "layer_norm_grad",
        |kernel| kernel.text.contains("true, true,"),
        &expect![[r#"
        // 4 launches, the first of 16 x 1 x 1 blocks of 64
        KERNEL(64) layer_norm_grad(const bf16* a0, const float* a1, const float* a2, const float* a3, const bf16* a4, const bf16* a5, bf16* a6, float* a7) {
            norms::gradient<rows::Along<64, 128, 8, 16, 4, true>, true, true, float>(a0, a1, a2, a3, a4, a5, a6, a7);
        }
    "#]],
    );
}

#[test]
fn attention_forward() {
    check(
        "attention_mma",
        |_| true,
        &expect![[r#"
            // 2 launches, the first of 8 x 1 x 1 blocks of 128
            KERNEL(128, 3) attention_mma(const bf16* a0, const bf16* a1, const bf16* a2, bf16* a3, float* a4, i64 a5) {
                attention::forward_mma<attention::Call<4, 1, 32, 32, 32, 32, true>, attention::Rows<12288, 32, 384>, attention::Rows<12288, 32, 384>, attention::Rows<12288, 32, 384>, attention::Rows<4096, 32, 128>, attention::NoMask, false, 4, 64, 2>(a0, a1, a2, (const u8*)0, a3, a4, (float)1.7677669529663687e-1, a5);
            }
        "#]],
    );
}

#[test]
fn adamw_of_all_parameters_of_a_shape() {
    check(
        "adam_many",
        |_| true,
        &expect![[r#"
            // 1 launches, the first of 16 x 1 x 6 blocks of 256
            KERNEL(256) adam_many(const u64* a0) {
                const u64* const own = a0 + (i64)blockIdx.z * 13;
                {
                const auto a0 = (const double*)own[0];
                const auto a1 = (const double*)own[1];
                const auto a2 = (const double*)own[2];
                const auto a3 = (const float*)own[3];
                const auto a4 = (const float*)own[4];
                const auto a5 = (const float*)own[5];
                const auto a6 = (const float*)own[6];
                const auto a7 = (const float*)own[7];
                const auto a8 = (float*)own[8];
                const auto a9 = (float*)own[9];
                const auto a10 = (float*)own[10];
                const auto a11 = (bf16*)own[11];
                const auto a12 = (const u32*)own[12];
                if (a12[1]) return;
                const optimizer::Tensors<const float, const float, 3> from = {a4, {a5, a6}};
                const optimizer::Tensors<float, float, 3> to = {a8, {a9, a10}};
                optimizer::adam<true, Layout<List<128, 128>, List<384, 1>>, u32, 4, true>(0.9, 0.999, 1e-8, a0, a1, a2, optimizer::Scaled<float>{a3}, a7, from, to, optimizer::Copy<bf16, Layout<List<128, 128>, List<384, 1>>, u32, true>{a11});
                }
            }
        "#]],
    );
}

#[test]
fn cross_entropy() {
    check(
        "cross_entropy",
        |_| true,
        &expect![[r#"
            // 1 launches, the first of 8 x 1 x 1 blocks of 256
            KERNEL(256) cross_entropy(const bf16* a0, const i64* a1, float* a2, double* a3, i64 a4) {
                loss::rows<loss::Team<32>, false, 64, 512, 512, 8>(a0, a1, a2, a3, a4, 0.0);
            }
        "#]],
    );
}
