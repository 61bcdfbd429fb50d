//! The known keys of DeepSpeed's and PatrickStar's JSON: one line for each, with its meaning here.
//!
//! To honour one more key that means the same as a flag, write `same(PATH, KIND, FLAG)`. A key that is read together with others is a
//! `part`, and a file of this folder reads it. Sources: DeepSpeed's `docs/_pages/config-json.md` and `deepspeed/runtime/*config*.py`;
//! PatrickStar's `GUIDE.md`, `examples/ps_config.py` and `patrickstar/runtime/engine.py`.

use Kind::{Count, Number, Numbers, Size, Switch, Text};

use super::super::json_file::Json;

/// A key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    /// The names from the top of the file on, with dots between them.
    pub(super) path: &'static str,
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
        "" => Some(key.path),
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
            Self::Any => "a value",
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

const fn same(path: &'static str, kind: Kind, flag: &'static str) -> Key {
    Key { path, kind, meaning: Meaning::Same(flag) }
}

const fn part(path: &'static str, kind: Kind, flags: &'static str) -> Key {
    Key { path, kind, meaning: Meaning::Part(flags) }
}

const fn asks(path: &'static str, flags: &'static str, reason: &'static str) -> Key {
    Key { path, kind: Kind::Any, meaning: Meaning::Asks(flags, reason) }
}

const fn always(path: &'static str, value: &'static str, reason: &'static str) -> Key {
    Key { path, kind: Kind::Any, meaning: Meaning::Always(value, reason) }
}

const fn dropped(path: &'static str, reason: &'static str) -> Key {
    Key { path, kind: Kind::Any, meaning: Meaning::Dropped(reason) }
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

/// Every known key, in the order of DeepSpeed's documentation; PatrickStar's stand at the end.
pub(super) const KEYS: &[Key] = &[
    part("train_batch_size", Size, "--global-batch"),
    part("train_micro_batch_size_per_gpu", Size, "--microbatch"),
    part("gradient_accumulation_steps", Size, "--global-batch"),
    always("managed_gradient_accumulation", "true", "a step always has all its microbatches"),
    // The optimizer.
    part("optimizer.type", Text, "--optimizer"),
    dropped("optimizer.legacy_fusion", COMPILED),
    part("optimizer.params.lr", Number, "--lr"),
    part("optimizer.params.betas", Numbers, "--optimizer"),
    part("optimizer.params.eps", Number, "--optimizer"),
    part("optimizer.params.weight_decay", Number, "--weight-decay"),
    part("optimizer.params.momentum", Number, "--optimizer"),
    part("optimizer.params.nesterov", Switch, "--optimizer"),
    part("optimizer.params.adam_w_mode", Switch, "--optimizer"),
    asks("optimizer.params.torch_adam", "--weight-decay 0.01 if the file gives none", COMPILED),
    always("optimizer.params.bias_correction", "true", BIAS),
    always("optimizer.params.amsgrad", "false", "Adam does not keep the largest second moment"),
    always("optimizer.params.dampening", "0", "the momentum has no dampening"),
    always("optimizer.params.lr_decay", "0", "--lr-schedule changes the rate"),
    always("optimizer.params.initial_accumulator_value", "0", "the sum of squares begins at 0"),
    always("optimizer.params.fp32_optimizer_states", "true", MOMENTS),
    dropped("optimizer.params.max_grad_norm", "DeepSpeed refuses it too; gradient_clipping clips"),
    dropped("optimizer.params.freeze_step", FULL_GRADIENTS),
    dropped("optimizer.params.cuda_aware", FULL_GRADIENTS),
    dropped("optimizer.params.comm_backend_name", FULL_GRADIENTS),
    dropped("optimizer.params.var_freeze_step", FULL_GRADIENTS),
    dropped("optimizer.params.var_update_scaler", FULL_GRADIENTS),
    dropped("optimizer.params.local_step_scaler", FULL_GRADIENTS),
    dropped("optimizer.params.local_step_clipper", FULL_GRADIENTS),
    dropped("optimizer.params.fused", COMPILED),
    dropped("optimizer.params.foreach", COMPILED),
    dropped("optimizer.params.capturable", COMPILED),
    dropped("optimizer.params.use_hybrid_adam", TIERS),
    dropped("optimizer.params.max_coeff", LAMB),
    dropped("optimizer.params.min_coeff", LAMB),
    dropped("optimizer.params.coeff_beta", LAMB),
    dropped("optimizer.params.factor_max", LAMB),
    dropped("optimizer.params.factor_min", LAMB),
    dropped("optimizer.params.factor_threshold", LAMB),
    dropped("optimizer.params.muon_lr", MUON),
    dropped("optimizer.params.adam_lr", MUON),
    dropped("optimizer.params.ns_method", MUON),
    // The learning rate.
    part("scheduler.type", Text, "--lr-schedule"),
    part("scheduler.params.warmup_max_lr", Number, "--lr"),
    part("scheduler.params.warmup_num_steps", Count, "--lr-schedule"),
    part("scheduler.params.total_num_steps", Size, "--lr-schedule"),
    part("scheduler.params.cos_min_ratio", Number, "--lr-schedule"),
    part("scheduler.params.warmup_type", Text, "--lr-schedule"),
    always("scheduler.params.warmup_min_lr", "0", LINE),
    always("scheduler.params.warmup_min_ratio", "0", LINE),
    always("scheduler.params.last_batch_iteration", "-1", "--resume continues a run"),
    dropped("scheduler.params.lr_range_test_min_lr", CYCLE),
    dropped("scheduler.params.lr_range_test_step_size", CYCLE),
    dropped("scheduler.params.lr_range_test_step_rate", CYCLE),
    dropped("scheduler.params.lr_range_test_staircase", CYCLE),
    dropped("scheduler.params.cycle_min_lr", CYCLE),
    dropped("scheduler.params.cycle_max_lr", CYCLE),
    dropped("scheduler.params.decay_lr_rate", CYCLE),
    dropped("scheduler.params.cycle_first_step_size", CYCLE),
    dropped("scheduler.params.cycle_second_step_size", CYCLE),
    dropped("scheduler.params.cycle_first_stair_count", CYCLE),
    dropped("scheduler.params.cycle_second_stair_count", CYCLE),
    dropped("scheduler.params.decay_step_size", CYCLE),
    dropped("scheduler.params.cycle_momentum", CYCLE),
    dropped("scheduler.params.cycle_min_mom", CYCLE),
    dropped("scheduler.params.cycle_max_mom", CYCLE),
    dropped("scheduler.params.decay_mom_rate", CYCLE),
    // Communication.
    part("communication_data_type", Text, "--grad-dtype"),
    dropped("seq_parallel_communication_data_type", "sums over tp have the type of the values"),
    always("gradient_allreduce_op", "mean", MEAN),
    dropped("prescale_gradients", MEAN),
    always("gradient_predivide_factor", "1", MEAN),
    dropped("sparse_gradients", "gradients of embeddings are dense"),
    dropped("disable_allgather", GATHERS),
    // Precision.
    part("fp16.enabled", Switch, "--fp16"),
    part("fp16.loss_scale", Number, "--loss-scale"),
    part("fp16.initial_scale_power", Count, "--loss-scale"),
    part("fp16.loss_scale_window", Size, "--loss-scale"),
    part("fp16.hysteresis", Size, "--loss-scale"),
    part("fp16.min_loss_scale", Number, "--loss-scale"),
    dropped("fp16.consecutive_hysteresis", "the hysteresis counts anew when the scale grows"),
    dropped("fp16.auto_cast", "float inputs are cast where they are used"),
    dropped("fp16.fp16_master_weights_and_grads", F32),
    dropped("fp16.opt_level", "it is an option of Apex"),
    part("bf16.enabled", Switch, "--bf16"),
    dropped("bf16.immediate_grad_update", ORDER),
    dropped("bf16.check_grad_overflow", "a run ends if a gradient in bf16 is not finite"),
    dropped("bf16.bf16_master_weights_and_grads", F32),
    dropped("bf16.bf16_optimizer_states", MOMENTS),
    part("bfloat16.enabled", Switch, "--bf16"),
    part("torch_autocast.enabled", Switch, "--bf16 or --fp16"),
    part("torch_autocast.dtype", Text, "--bf16 or --fp16"),
    dropped("torch_autocast.lower_precision_safe_modules", MODULES),
    dropped("amp", "give the precision by --fp16 or --bf16, in place of Apex"),
    part("data_types.grad_accum_dtype", Text, "--grad-dtype"),
    dropped("data_types.param_dtype", F32),
    dropped("data_types.buffer_dtype", F32),
    part("gradient_clipping", Number, "--clip"),
    // ZeRO.
    part("zero_optimization", Switch, "--zero 1"),
    part("zero_optimization.stage", Count, "--zero"),
    always("zero_optimization.overlap_comm", "true", "collectives always run beside computation"),
    always("zero_optimization.allgather_partitions", "true", GATHERS),
    always(
        "zero_optimization.reduce_scatter",
        "true",
        "gradients are reduced and scattered where states are sharded",
    ),
    dropped("zero_optimization.allgather_bucket_size", BUCKETS),
    dropped("zero_optimization.reduce_bucket_size", BUCKETS),
    dropped("zero_optimization.use_multi_rank_bucket_allreduce", BUCKETS),
    dropped("allgather_size", BUCKETS),
    dropped("zero_optimization.contiguous_gradients", MEMORY),
    dropped("zero_optimization.sub_group_size", "each parameter is updated on its own"),
    dropped("zero_optimization.round_robin_gradients", TIERS),
    dropped("zero_optimization.stage3_max_live_parameters", GATHERS),
    dropped("zero_optimization.stage3_max_reuse_distance", GATHERS),
    dropped("zero_optimization.stage3_prefetch_bucket_size", GATHERS),
    dropped("zero_optimization.stage3_module_granularity_threshold", GATHERS),
    dropped("zero_optimization.stage3_use_all_reduce_for_fetch_params", GATHERS),
    dropped("zero_optimization.stage3_allgather_sequential", GATHERS),
    dropped("zero_optimization.stage3_param_persistence_threshold", "stage 3 shards parameters of all sizes"),
    dropped("zero_optimization.stage3_model_persistence_threshold", "stage 3 shards parameters of all sizes"),
    dropped("zero_optimization.stage3_gather_16bit_weights_on_model_save", WHOLE),
    dropped("zero_optimization.stage3_gather_fp16_weights_on_model_save", WHOLE),
    dropped("zero_optimization.gather_16bit_weights_on_model_save", WHOLE),
    dropped("zero_optimization.load_from_fp32_weights", CHECKPOINTS),
    dropped("zero_optimization.elastic_checkpoint", CHECKPOINTS),
    dropped("zero_optimization.pipeline_loading_checkpoint", CHECKPOINTS),
    dropped("zero_optimization.ignore_unused_parameters", MODULES),
    dropped("zero_optimization.legacy_stage1", MODULES),
    dropped("zero_optimization.grad_hooks", MODULES),
    dropped("zero_optimization.memory_efficient_linear", MODULES),
    dropped("zero_optimization.override_module_apply", MODULES),
    dropped("zero_optimization.leaf_module", MODULES),
    dropped("zero_optimization.log_trace_cache_warnings", ORDER),
    dropped("zero_optimization.enable_sanity_checks", "the verifier checks the program after every pass"),
    always("zero_optimization.zero_hpz_partition_size", "1", "shards span all data ranks"),
    always("zero_optimization.mics_shard_size", "-1", "shards span all data ranks"),
    dropped("zero_optimization.mics_hierarchical_params_gather", "--cluster divides collectives over nodes"),
    dropped("zero_optimization.zero_quantized_weights", QUANTIZED),
    dropped("zero_optimization.zero_quantized_nontrainable_weights", QUANTIZED),
    dropped("zero_optimization.zero_quantized_gradients", QUANTIZED),
    dropped("zero_optimization.zeropp_loco_param", QUANTIZED),
    dropped("zero_optimization.save_muon_momentum_buffer_in_memory", MUON),
    dropped("zero_allow_untested_optimizer", "ZeRO works with every optimizer"),
    // Offloading; `offload` reads the parts.
    part("zero_optimization.offload_optimizer.device", Text, "--offload optimizer"),
    part("zero_optimization.offload_optimizer.nvme_path", Text, "--memory disk=DIR"),
    dropped("zero_optimization.offload_optimizer.pin_memory", TIERS),
    dropped("zero_optimization.offload_optimizer.ratio", TIERS),
    dropped("zero_optimization.offload_optimizer.buffer_count", TIERS),
    dropped("zero_optimization.offload_optimizer.pipeline_read", TIERS),
    dropped("zero_optimization.offload_optimizer.pipeline_write", TIERS),
    dropped("zero_optimization.offload_optimizer.fast_init", TIERS),
    dropped("zero_optimization.offload_optimizer.super_offload", TIERS),
    dropped("zero_optimization.offload_optimizer.cpuadam_cores_perc", TIERS),
    part("zero_optimization.offload_param.device", Text, "--offload parameters"),
    part("zero_optimization.offload_param.nvme_path", Text, "--memory disk=DIR"),
    dropped("zero_optimization.offload_param.pin_memory", TIERS),
    dropped("zero_optimization.offload_param.buffer_count", TIERS),
    dropped("zero_optimization.offload_param.buffer_size", TIERS),
    dropped("zero_optimization.offload_param.max_in_cpu", TIERS),
    part("zero_optimization.cpu_offload", Switch, "--offload optimizer"),
    part("zero_optimization.cpu_offload_param", Switch, "--offload parameters"),
    dropped("zero_optimization.cpu_offload_use_pin_memory", TIERS),
    dropped("zero_optimization.zenflow", TIERS),
    dropped("zero_force_ds_cpu_optimizer", TIERS),
    dropped("aio", TIERS),
    // Activations.
    asks(
        "activation_checkpointing.partition_activations",
        "--recompute full",
        "--sequence-parallel splits kept values over tp",
    ),
    part("activation_checkpointing.cpu_checkpointing", Switch, "--recompute full --offload activations"),
    asks("activation_checkpointing.contiguous_memory_optimization", "--recompute full", MEMORY),
    asks(
        "activation_checkpointing.number_checkpoints",
        "--recompute full",
        "a value is kept between every two blocks of the model",
    ),
    asks("activation_checkpointing.synchronize_checkpoint_boundary", "--recompute full", ORDER),
    asks("activation_checkpointing.profile", "--recompute full", MEASURED),
    // Meshes.
    part("tensor_parallel.autotp_size", Count, "--mesh tp=N"),
    part("tensor_parallel.tp.tp_size", Count, "--mesh tp=N"),
    part("tensor_parallel.tp_size", Count, "--mesh tp=N"),
    dropped("tensor_parallel.tp.tp_grain_size", SHARDS),
    dropped("tensor_parallel.tp_overlap_comm", "collectives over tp run beside computation where they can"),
    dropped("tensor_parallel.preset_model", SHARDS),
    dropped("tensor_parallel.partition_config", SHARDS),
    dropped("tensor_parallel.injection_policy_tuple", SHARDS),
    dropped("tensor_parallel.dtype", "--bf16 and --fp16 give the precision"),
    dropped("tensor_parallel.keep_module_on_host", MODULES),
    dropped("tensor_parallel.replace_with_kernel_inject", COMPILED),
    part("expert_parallel.enabled", Switch, "--mesh ep=N"),
    part("expert_parallel.autoep_size", Size, "--mesh ep=N"),
    always("expert_parallel.expert_tensor_parallel_size", "1", "tp splits experts as other weights"),
    dropped("expert_parallel.preset_model", MOE),
    dropped("expert_parallel.use_grouped_mm", COMPILED),
    dropped("expert_parallel.disable_triton_grouped_mm", COMPILED),
    dropped("expert_parallel.moe_layer_pattern", MOE),
    dropped("expert_parallel.router_pattern", MOE),
    dropped("expert_parallel.expert_pattern", MOE),
    dropped("expert_parallel.expert_w1", MOE),
    dropped("expert_parallel.expert_w2", MOE),
    dropped("expert_parallel.expert_w3", MOE),
    dropped("expert_parallel.num_experts_attr", MOE),
    dropped("expert_parallel.top_k_attr", MOE),
    dropped("expert_parallel.has_shared_experts", MOE),
    dropped("expert_parallel.shared_experts_pattern", MOE),
    dropped("expert_parallel.score_func", MOE),
    dropped("expert_parallel.score_apply", MOE),
    dropped("expert_parallel.route_norm", MOE),
    dropped("expert_parallel.route_scale", MOE),
    dropped("expert_parallel.top_k", MOE),
    dropped("expert_parallel.routed_scaling_factor", MOE),
    dropped("expert_parallel.num_expert_groups", MOE),
    dropped("expert_parallel.num_limited_groups", MOE),
    dropped("expert_parallel.load_balance_coeff", MOE),
    dropped("use_data_before_expert_parallelism", "--mesh gives the order of the axes"),
    part("pipeline.stages", Count, "--mesh pp=N"),
    dropped("pipeline.partition", STAGES),
    part("pipeline.activation_checkpoint_interval", Count, "--recompute full"),
    dropped("pipeline.seed_layers", "random numbers depend on --seed and the sample alone"),
    dropped("pipeline.pipe_partitioned", "messages between stages have the sharding of the value"),
    dropped("pipeline.grad_partitioned", "messages between stages have the sharding of the value"),
    dropped("pipeline.use_reentrant", MODULES),
    dropped(
        "sequence_parallel_size",
        "context parallelism is not supported yet; --sequence-parallel splits over tp",
    ),
    // Logs, measurements, tools.
    same("seed", Count, "seed"),
    same("wall_clock_breakdown", Switch, "profile"),
    dropped("steps_per_print", "progress is shown by time and not by steps"),
    dropped("memory_breakdown", "plan.json has the memory of each device to the byte"),
    dropped("dump_state", LOG),
    dropped("log_level", LOG),
    dropped("timers", LOG),
    dropped("comms_logger", MEASURED),
    dropped("flops_profiler", MEASURED),
    dropped("tensorboard", METRICS),
    dropped("wandb", METRICS),
    dropped("comet", METRICS),
    dropped("csv_monitor", METRICS),
    dropped("autotuning", "inspect --target predicts a step for any flags"),
    dropped("elasticity", "a checkpoint continues on every mesh with its global batch"),
    dropped("checkpoint", CHECKPOINTS),
    dropped("nebula", CHECKPOINTS),
    dropped("datastates", CHECKPOINTS),
    dropped("compile", COMPILED),
    dropped("graph_harvesting", COMPILED),
    dropped(
        "dataloader_drop_last",
        "a short batch is filled up if the loss can ignore labels, and left out otherwise",
    ),
    dropped("data_efficiency", DATA),
    dropped("curriculum_learning", DATA),
    dropped("sparse_attention", ATTENTION),
    dropped("progressive_layer_drop", "all layers of the model run"),
    dropped("eigenvalue", SEPARATE),
    dropped("quantize_training", SEPARATE),
    dropped("weight_quantization", SEPARATE),
    dropped("compression_training", SEPARATE),
    dropped("hybrid_engine", SEPARATE),
    dropped("vocabulary_size", "the model has its vocabulary"),
    // PatrickStar.
    asks("default_chunk_size", "--zero 3", CHUNKS),
    dropped("release_after_init", "each rank makes the initial values of its own part alone"),
    part("use_cpu_embedding", Switch, "--offload embeddings"),
    dropped("use_fake_dist", "ranks of --mesh are threads without a launcher"),
    dropped("client.mem_tracer.use_async_mem_monitor", TRACER),
    dropped("client.mem_tracer.warmup_gpu_chunk_mem_ratio", TRACER),
    dropped("client.mem_tracer.overall_gpu_mem_ratio", TRACER),
    dropped("client.mem_tracer.overall_cpu_mem_ratio", TRACER),
    dropped("client.mem_tracer.margin_use_ratio", TRACER),
    dropped("client.mem_tracer.with_static_partition", TRACER),
    dropped("client.mem_tracer.use_fake_dist", TRACER),
    dropped("client.opts.with_mem_saving_comm", CHUNKS),
    dropped("client.opts.with_mem_cache", CHUNKS),
    dropped("client.opts.with_async_move", TIERS),
    part("client.opts.with_activation_offload", Switch, "--offload activations"),
];
