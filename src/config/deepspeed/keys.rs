//! The known keys of DeepSpeed's and PatrickStar's JSON, with their meanings here. A row of the table has keys of one section that have one
//! meaning.
//!
//! To honour one more key that means the same as a flag, write `(SECTION, NAME, KIND, Same(FLAG))`. A key that is read together with others
//! is a `Part`, and a file of this folder reads it. Sources: DeepSpeed's `docs/_pages/config-json.md` and `deepspeed/runtime/*config*.py`;
//! PatrickStar's `GUIDE.md`, `examples/ps_config.py` and `patrickstar/runtime/engine.py`.

use std::sync::LazyLock;

use Kind::{Any, Count, Number, Numbers, Size, Switch, Text};
use Meaning::{Always, Asks, Dropped, Part, Same};

use super::super::json_file::Json;

/// A key.
#[derive(Clone, Debug)]
pub(super) struct Key {
    /// The names from the top of the file on, with dots between them.
    pub(super) path: String,
    /// The values that it takes; checked if the key is honoured.
    pub(super) kind: Kind,
    pub(super) meaning: Meaning,
}

/// The values that a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `true` or `false`.
    Switch,
    /// A whole number from 0.
    Count,
    /// A whole number from 1.
    Size,
    /// Any number.
    Number,
    /// A list of numbers.
    Numbers,
    /// A string.
    Text,
    /// Every value.
    Any,
}

/// The meaning of a key for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The same as the flag of this name.
    Same(&'static str),
    /// The key becomes these flags, together with other keys.
    Part(&'static str),
    /// The key asks for these flags. Its own value is not honoured, for this reason.
    Asks(&'static str, &'static str),
    /// The program always does what this value says, and other values are not honoured, for this reason.
    Always(&'static str, &'static str),
    /// The key is not honoured, for this reason. A value that switches it off is honoured.
    Dropped(&'static str),
}

/// The key with this path.
pub(super) fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// Whether keys stand below this path.
pub(super) fn is_section(path: &str) -> bool {
    KEYS.iter().any(|key| key.path.strip_prefix(path).is_some_and(|below| below.starts_with('.')))
}

/// The names that may stand in a section; `""` is the top of the file.
pub(super) fn names_in(section: &str) -> impl Iterator<Item = &'static str> {
    let below = KEYS.iter().filter_map(move |key| match section {
        "" => Some(key.path.as_str()),
        _ => key.path.strip_prefix(section)?.strip_prefix('.'),
    });
    below.filter_map(|path| path.split('.').next())
}

impl Kind {
    /// Describes the values of this kind, for an error.
    pub(super) fn wants(self) -> &'static str {
        match self {
            Switch => "true or false",
            Count => "a whole number",
            Size => "a whole number from 1",
            Number => "a number",
            Numbers => "a list of numbers",
            Text => "a string",
            Any => "a value",
        }
    }
}

/// Whether a value switches its key off, so that nothing is left to honour.
pub(super) fn is_off(value: &Json) -> bool {
    match value {
        Json::Null | Json::Switch(false) => true,
        Json::Switch(true) | Json::Number(_) => false,
        Json::Text(text) => text == "none" || text == "auto",
        Json::List(items) => items.is_empty(),
        Json::Object(members) => {
            members.is_empty()
                || members.iter().any(|member| member.key == "enabled" && member.value.get() == "false")
        }
    }
}

/// The reason for keys that control how tensors move between memories.
const TIERS: &str = "the compiler decides when and how values move between memories";
/// The reason for a warm-up that is not linear.
pub(super) const LINE: &str = "the warm-up is a line from lr/N to lr over N steps";
const BUCKETS: &str = "the compiler groups collectives itself, in buckets of 25 MiB";
const GATHERS: &str = "the compiler places the gather and the release of each parameter";
const MEMORY: &str = "the compiler gives every tensor its place in memory before the run";
const ORDER: &str = "the order of all work is fixed when the program is compiled";
const FULL_GRADIENTS: &str = "gradients are sent without compression";
const MEAN: &str = "the loss is the mean over all samples of a step";
const QUANTIZED: &str = "weights and gradients are sent as floats";
const WHOLE: &str = "the trained model always has all weights, in f32";
const MODULES: &str = "a compiled program has no PyTorch modules";
const F32: &str = "weights and gradients of the update are f32";
/// The reason for the type of the optimizer's states.
const MOMENTS: &str = "--optimizer adamw:moments=bf16 keeps moments in bf16";
const BIAS: &str = "Adam corrects the bias of its moments";
const LAMB: &str = "there is no LAMB";
const MUON: &str = "there is no Muon";
const CYCLE: &str = "there is no such schedule";
const MOE: &str = "the experts are found in the graph, and the model says how it routes tokens";
const SHARDS: &str = "shards follow from the graph; --shard overrides them";
const STAGES: &str = "stages take equal times; --cut overrides them";
const CHUNKS: &str = "parameters are sharded one by one, and not in chunks";
const TRACER: &str = "memory is planned before the run and not traced; --memory takes the bytes of a device";
const METRICS: &str = "metrics.jsonl has the numbers of each step";
const LOG: &str = "the log has fixed contents";
const MEASURED: &str = "--profile measures a step by kind of kernel, and inspect counts its work";
const SEPARATE: &str = "it is no part of training a given model";
const ATTENTION: &str = "the model's own attention is computed";
const DATA: &str = "samples come in the order that --seed gives";
const CHECKPOINTS: &str = "checkpoints have one form, which every mesh reads";
const COMPILED: &str = "the whole step is always compiled";
const SCATTERED: &str = "gradients are reduced and scattered where states are sharded";
const ALL_SIZES: &str = "stage 3 shards parameters of all sizes";
const NODES: &str = "--cluster divides collectives over nodes";
const SEQUENCES: &str = "--sequence-parallel splits kept values over tp";
const KEPT: &str = "a value is kept between every two blocks of the model";
const BESIDE: &str = "collectives over tp run beside computation where they can";
const CONTEXT: &str = "context parallelism is not supported yet; --sequence-parallel splits over tp";
const SHORT: &str = "a short batch is filled up if the loss can ignore labels, and left out otherwise";
const MESSAGES: &str = "messages between stages have the sharding of the value";
const SPAN: &str = "shards span all data ranks";

/// Keys of a section: their names with spaces between them, the values that they take, and their meaning.
type Row = (&'static str, &'static str, Kind, Meaning);

/// Every known key, in the order of [`ROWS`].
pub(super) static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let of_row = |&(section, names, kind, meaning): &Row| {
        let path =
            move |name: &str| if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") };
        names.split(' ').map(move |name| Key { path: path(name), kind, meaning })
    };
    ROWS.iter().flat_map(of_row).collect()
});

/// The known keys, in the order of DeepSpeed's documentation; PatrickStar's stand at the end. The section `""` is the top of the file.
const ROWS: &[Row] = &[
    ("", "train_batch_size gradient_accumulation_steps", Size, Part("--global-batch")),
    ("", "train_micro_batch_size_per_gpu", Size, Part("--microbatch")),
    ("", "managed_gradient_accumulation", Any, Always("true", "a step always has all its microbatches")),
    // The optimizer.
    ("optimizer", "type", Text, Part("--optimizer")),
    ("optimizer", "legacy_fusion", Any, Dropped(COMPILED)),
    ("optimizer.params", "lr", Number, Part("--lr")),
    ("optimizer.params", "betas", Numbers, Part("--optimizer")),
    ("optimizer.params", "eps momentum", Number, Part("--optimizer")),
    ("optimizer.params", "weight_decay", Number, Part("--weight-decay")),
    ("optimizer.params", "nesterov adam_w_mode", Switch, Part("--optimizer")),
    ("optimizer.params", "torch_adam", Any, Asks("--weight-decay 0.01 if the file gives none", COMPILED)),
    ("optimizer.params", "bias_correction", Any, Always("true", BIAS)),
    ("optimizer.params", "amsgrad", Any, Always("false", "Adam does not keep the largest second moment")),
    ("optimizer.params", "dampening", Any, Always("0", "the momentum has no dampening")),
    ("optimizer.params", "lr_decay", Any, Always("0", "--lr-schedule changes the rate")),
    ("optimizer.params", "initial_accumulator_value", Any, Always("0", "the sum of squares begins at 0")),
    ("optimizer.params", "fp32_optimizer_states", Any, Always("true", MOMENTS)),
    ("optimizer.params", "max_grad_norm", Any, Dropped("DeepSpeed refuses it too; gradient_clipping clips")),
    ("optimizer.params", "freeze_step cuda_aware comm_backend_name", Any, Dropped(FULL_GRADIENTS)),
    ("optimizer.params", "var_freeze_step var_update_scaler local_step_scaler", Any, Dropped(FULL_GRADIENTS)),
    ("optimizer.params", "local_step_clipper", Any, Dropped(FULL_GRADIENTS)),
    ("optimizer.params", "fused foreach capturable", Any, Dropped(COMPILED)),
    ("optimizer.params", "use_hybrid_adam", Any, Dropped(TIERS)),
    ("optimizer.params", "max_coeff min_coeff coeff_beta factor_max factor_min", Any, Dropped(LAMB)),
    ("optimizer.params", "factor_threshold", Any, Dropped(LAMB)),
    ("optimizer.params", "muon_lr adam_lr ns_method", Any, Dropped(MUON)),
    // The learning rate.
    ("scheduler", "type", Text, Part("--lr-schedule")),
    ("scheduler.params", "warmup_max_lr", Number, Part("--lr")),
    ("scheduler.params", "warmup_num_steps", Count, Part("--lr-schedule")),
    ("scheduler.params", "total_num_steps", Size, Part("--lr-schedule")),
    ("scheduler.params", "cos_min_ratio", Number, Part("--lr-schedule")),
    ("scheduler.params", "warmup_type", Text, Part("--lr-schedule")),
    ("scheduler.params", "warmup_min_lr warmup_min_ratio", Any, Always("0", LINE)),
    ("scheduler.params", "last_batch_iteration", Any, Always("-1", "--resume continues a run")),
    ("scheduler.params", "lr_range_test_min_lr lr_range_test_step_size", Any, Dropped(CYCLE)),
    ("scheduler.params", "lr_range_test_step_rate lr_range_test_staircase cycle_min_lr", Any, Dropped(CYCLE)),
    ("scheduler.params", "cycle_max_lr decay_lr_rate cycle_first_step_size", Any, Dropped(CYCLE)),
    ("scheduler.params", "cycle_second_step_size cycle_first_stair_count", Any, Dropped(CYCLE)),
    ("scheduler.params", "cycle_second_stair_count decay_step_size cycle_momentum", Any, Dropped(CYCLE)),
    ("scheduler.params", "cycle_min_mom cycle_max_mom decay_mom_rate", Any, Dropped(CYCLE)),
    // Communication.
    ("", "communication_data_type", Text, Part("--grad-dtype")),
    ("", "seq_parallel_communication_data_type", Any, Dropped("sums over tp have the type of the values")),
    ("", "gradient_allreduce_op", Any, Always("mean", MEAN)),
    ("", "prescale_gradients", Any, Dropped(MEAN)),
    ("", "gradient_predivide_factor", Any, Always("1", MEAN)),
    ("", "sparse_gradients", Any, Dropped("gradients of embeddings are dense")),
    ("", "disable_allgather", Any, Dropped(GATHERS)),
    // Precision.
    ("fp16", "enabled", Switch, Part("--fp16")),
    ("fp16", "loss_scale", Number, Part("--loss-scale")),
    ("fp16", "initial_scale_power", Count, Part("--loss-scale")),
    ("fp16", "loss_scale_window hysteresis", Size, Part("--loss-scale")),
    ("fp16", "min_loss_scale", Number, Part("--loss-scale")),
    ("fp16", "consecutive_hysteresis", Any, Dropped("the hysteresis counts anew when the scale grows")),
    ("fp16", "auto_cast", Any, Dropped("float inputs are cast where they are used")),
    ("fp16", "fp16_master_weights_and_grads", Any, Dropped(F32)),
    ("fp16", "opt_level", Any, Dropped("it is an option of Apex")),
    ("bf16", "enabled", Switch, Part("--bf16")),
    ("bf16", "immediate_grad_update", Any, Dropped(ORDER)),
    ("bf16", "check_grad_overflow", Any, Dropped("a run ends if a gradient in bf16 is not finite")),
    ("bf16", "bf16_master_weights_and_grads", Any, Dropped(F32)),
    ("bf16", "bf16_optimizer_states", Any, Dropped(MOMENTS)),
    ("bfloat16", "enabled", Switch, Part("--bf16")),
    ("torch_autocast", "enabled", Switch, Part("--bf16 or --fp16")),
    ("torch_autocast", "dtype", Text, Part("--bf16 or --fp16")),
    ("torch_autocast", "lower_precision_safe_modules", Any, Dropped(MODULES)),
    ("", "amp", Any, Dropped("give the precision by --fp16 or --bf16, in place of Apex")),
    ("data_types", "grad_accum_dtype", Text, Part("--grad-dtype")),
    ("data_types", "param_dtype buffer_dtype", Any, Dropped(F32)),
    ("", "gradient_clipping", Number, Part("--clip")),
    // ZeRO.
    ("", "zero_optimization", Switch, Part("--zero 1")),
    ("zero_optimization", "stage", Count, Part("--zero")),
    ("zero_optimization", "overlap_comm", Any, Always("true", "collectives always run beside computation")),
    ("zero_optimization", "allgather_partitions", Any, Always("true", GATHERS)),
    ("zero_optimization", "reduce_scatter", Any, Always("true", SCATTERED)),
    ("zero_optimization", "allgather_bucket_size reduce_bucket_size", Any, Dropped(BUCKETS)),
    ("zero_optimization", "use_multi_rank_bucket_allreduce", Any, Dropped(BUCKETS)),
    ("", "allgather_size", Any, Dropped(BUCKETS)),
    ("zero_optimization", "contiguous_gradients", Any, Dropped(MEMORY)),
    ("zero_optimization", "sub_group_size", Any, Dropped("each parameter is updated on its own")),
    ("zero_optimization", "round_robin_gradients", Any, Dropped(TIERS)),
    ("zero_optimization", "stage3_max_live_parameters stage3_max_reuse_distance", Any, Dropped(GATHERS)),
    ("zero_optimization", "stage3_prefetch_bucket_size", Any, Dropped(GATHERS)),
    ("zero_optimization", "stage3_module_granularity_threshold", Any, Dropped(GATHERS)),
    ("zero_optimization", "stage3_use_all_reduce_for_fetch_params", Any, Dropped(GATHERS)),
    ("zero_optimization", "stage3_allgather_sequential", Any, Dropped(GATHERS)),
    ("zero_optimization", "stage3_param_persistence_threshold", Any, Dropped(ALL_SIZES)),
    ("zero_optimization", "stage3_model_persistence_threshold", Any, Dropped(ALL_SIZES)),
    ("zero_optimization", "stage3_gather_16bit_weights_on_model_save", Any, Dropped(WHOLE)),
    ("zero_optimization", "stage3_gather_fp16_weights_on_model_save", Any, Dropped(WHOLE)),
    ("zero_optimization", "gather_16bit_weights_on_model_save", Any, Dropped(WHOLE)),
    ("zero_optimization", "load_from_fp32_weights elastic_checkpoint", Any, Dropped(CHECKPOINTS)),
    ("zero_optimization", "pipeline_loading_checkpoint", Any, Dropped(CHECKPOINTS)),
    ("zero_optimization", "ignore_unused_parameters legacy_stage1 grad_hooks", Any, Dropped(MODULES)),
    ("zero_optimization", "memory_efficient_linear override_module_apply leaf_module", Any, Dropped(MODULES)),
    ("zero_optimization", "log_trace_cache_warnings", Any, Dropped(ORDER)),
    (
        "zero_optimization",
        "enable_sanity_checks",
        Any,
        Dropped("the verifier checks the program after every pass"),
    ),
    ("zero_optimization", "zero_hpz_partition_size", Any, Always("1", SPAN)),
    ("zero_optimization", "mics_shard_size", Any, Always("-1", SPAN)),
    ("zero_optimization", "mics_hierarchical_params_gather", Any, Dropped(NODES)),
    ("zero_optimization", "zero_quantized_weights", Any, Dropped(QUANTIZED)),
    ("zero_optimization", "zero_quantized_nontrainable_weights", Any, Dropped(QUANTIZED)),
    ("zero_optimization", "zero_quantized_gradients zeropp_loco_param", Any, Dropped(QUANTIZED)),
    ("zero_optimization", "save_muon_momentum_buffer_in_memory", Any, Dropped(MUON)),
    ("", "zero_allow_untested_optimizer", Any, Dropped("ZeRO works with every optimizer")),
    // Offloading; `offload` reads the parts.
    ("zero_optimization.offload_optimizer", "device", Text, Part("--offload optimizer")),
    ("zero_optimization.offload_optimizer", "nvme_path", Text, Part("--memory disk=DIR")),
    ("zero_optimization.offload_optimizer", "pin_memory ratio buffer_count", Any, Dropped(TIERS)),
    ("zero_optimization.offload_optimizer", "pipeline_read pipeline_write fast_init", Any, Dropped(TIERS)),
    ("zero_optimization.offload_optimizer", "super_offload cpuadam_cores_perc", Any, Dropped(TIERS)),
    ("zero_optimization.offload_param", "device", Text, Part("--offload parameters")),
    ("zero_optimization.offload_param", "nvme_path", Text, Part("--memory disk=DIR")),
    ("zero_optimization.offload_param", "pin_memory buffer_count buffer_size", Any, Dropped(TIERS)),
    ("zero_optimization.offload_param", "max_in_cpu", Any, Dropped(TIERS)),
    ("zero_optimization", "cpu_offload", Switch, Part("--offload optimizer")),
    ("zero_optimization", "cpu_offload_param", Switch, Part("--offload parameters")),
    ("zero_optimization", "cpu_offload_use_pin_memory zenflow", Any, Dropped(TIERS)),
    ("", "zero_force_ds_cpu_optimizer aio", Any, Dropped(TIERS)),
    // Activations.
    ("activation_checkpointing", "partition_activations", Any, Asks("--recompute full", SEQUENCES)),
    ("activation_checkpointing", "cpu_checkpointing", Switch, Part("--recompute full --offload activations")),
    ("activation_checkpointing", "contiguous_memory_optimization", Any, Asks("--recompute full", MEMORY)),
    ("activation_checkpointing", "number_checkpoints", Any, Asks("--recompute full", KEPT)),
    ("activation_checkpointing", "synchronize_checkpoint_boundary", Any, Asks("--recompute full", ORDER)),
    ("activation_checkpointing", "profile", Any, Asks("--recompute full", MEASURED)),
    // Meshes.
    ("tensor_parallel", "autotp_size", Count, Part("--mesh tp=N")),
    ("tensor_parallel.tp", "tp_size", Count, Part("--mesh tp=N")),
    ("tensor_parallel", "tp_size", Count, Part("--mesh tp=N")),
    ("tensor_parallel.tp", "tp_grain_size", Any, Dropped(SHARDS)),
    ("tensor_parallel", "tp_overlap_comm", Any, Dropped(BESIDE)),
    ("tensor_parallel", "preset_model partition_config injection_policy_tuple", Any, Dropped(SHARDS)),
    ("tensor_parallel", "dtype", Any, Dropped("--bf16 and --fp16 give the precision")),
    ("tensor_parallel", "keep_module_on_host", Any, Dropped(MODULES)),
    ("tensor_parallel", "replace_with_kernel_inject", Any, Dropped(COMPILED)),
    ("expert_parallel", "enabled", Switch, Part("--mesh ep=N")),
    ("expert_parallel", "autoep_size", Size, Part("--mesh ep=N")),
    (
        "expert_parallel",
        "expert_tensor_parallel_size",
        Any,
        Always("1", "tp splits experts as other weights"),
    ),
    ("expert_parallel", "preset_model moe_layer_pattern router_pattern expert_pattern", Any, Dropped(MOE)),
    ("expert_parallel", "expert_w1 expert_w2 expert_w3 num_experts_attr top_k_attr", Any, Dropped(MOE)),
    ("expert_parallel", "has_shared_experts shared_experts_pattern score_func", Any, Dropped(MOE)),
    ("expert_parallel", "score_apply route_norm route_scale top_k routed_scaling_factor", Any, Dropped(MOE)),
    ("expert_parallel", "num_expert_groups num_limited_groups load_balance_coeff", Any, Dropped(MOE)),
    ("expert_parallel", "use_grouped_mm disable_triton_grouped_mm", Any, Dropped(COMPILED)),
    ("", "use_data_before_expert_parallelism", Any, Dropped("--mesh gives the order of the axes")),
    ("pipeline", "stages", Count, Part("--mesh pp=N")),
    ("pipeline", "partition", Any, Dropped(STAGES)),
    ("pipeline", "activation_checkpoint_interval", Count, Part("--recompute full")),
    ("pipeline", "seed_layers", Any, Dropped("random numbers depend on --seed and the sample alone")),
    ("pipeline", "pipe_partitioned grad_partitioned", Any, Dropped(MESSAGES)),
    ("pipeline", "use_reentrant", Any, Dropped(MODULES)),
    ("", "sequence_parallel_size", Any, Dropped(CONTEXT)),
    // Logs, measurements, tools.
    ("", "seed", Count, Same("seed")),
    ("", "wall_clock_breakdown", Switch, Same("profile")),
    ("", "steps_per_print", Any, Dropped("progress is shown by time and not by steps")),
    ("", "memory_breakdown", Any, Dropped("plan.json has the memory of each device to the byte")),
    ("", "dump_state log_level timers", Any, Dropped(LOG)),
    ("", "comms_logger flops_profiler", Any, Dropped(MEASURED)),
    ("", "tensorboard wandb comet csv_monitor", Any, Dropped(METRICS)),
    ("", "autotuning", Any, Dropped("inspect --target predicts a step for any flags")),
    ("", "elasticity", Any, Dropped("a checkpoint continues on every mesh with its global batch")),
    ("", "checkpoint nebula datastates", Any, Dropped(CHECKPOINTS)),
    ("", "compile graph_harvesting", Any, Dropped(COMPILED)),
    ("", "dataloader_drop_last", Any, Dropped(SHORT)),
    ("", "data_efficiency curriculum_learning", Any, Dropped(DATA)),
    ("", "sparse_attention", Any, Dropped(ATTENTION)),
    ("", "progressive_layer_drop", Any, Dropped("all layers of the model run")),
    ("", "eigenvalue quantize_training weight_quantization compression_training", Any, Dropped(SEPARATE)),
    ("", "hybrid_engine", Any, Dropped(SEPARATE)),
    ("", "vocabulary_size", Any, Dropped("the model has its vocabulary")),
    // PatrickStar.
    ("", "default_chunk_size", Any, Asks("--zero 3", CHUNKS)),
    ("", "release_after_init", Any, Dropped("each rank makes the initial values of its own part alone")),
    ("", "use_cpu_embedding", Switch, Part("--offload embeddings")),
    ("", "use_fake_dist", Any, Dropped("ranks of --mesh are threads without a launcher")),
    ("client.mem_tracer", "use_async_mem_monitor warmup_gpu_chunk_mem_ratio", Any, Dropped(TRACER)),
    ("client.mem_tracer", "overall_gpu_mem_ratio overall_cpu_mem_ratio", Any, Dropped(TRACER)),
    ("client.mem_tracer", "margin_use_ratio with_static_partition use_fake_dist", Any, Dropped(TRACER)),
    ("client.opts", "with_mem_saving_comm with_mem_cache", Any, Dropped(CHUNKS)),
    ("client.opts", "with_async_move", Any, Dropped(TIERS)),
    ("client.opts", "with_activation_offload", Switch, Part("--offload activations")),
];
