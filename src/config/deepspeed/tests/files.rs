//! Whole files: their flags and their notes.

use expect_test::expect;

use super::{check, translated};

/// In the form of DeepSpeed's `cifar` example.
const ZERO_2: &str = r#"{
  "train_batch_size": 16,
  "steps_per_print": 2000,
  "optimizer": {
    "type": "Adam",
    "params": {"lr": 0.002, "betas": [0.8, 0.999], "eps": 1e-7, "weight_decay": 3e-7}
  },
  "scheduler": {
    "type": "WarmupLR",
    "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.002, "warmup_num_steps": 800}
  },
  "gradient_clipping": 1.0,
  "prescale_gradients": false,
  "fp16": {
    "enabled": true,
    "fp16_master_weights_and_grads": false,
    "loss_scale": 0,
    "loss_scale_window": 500,
    "hysteresis": 3,
    "min_loss_scale": 1,
    "initial_scale_power": 15
  },
  "wall_clock_breakdown": false,
  "zero_optimization": {
    "stage": 2,
    "allgather_partitions": true,
    "reduce_scatter": true,
    "allgather_bucket_size": 5e7,
    "reduce_bucket_size": 50000000,
    "overlap_comm": true,
    "contiguous_gradients": true,
    "cpu_offload": false
  }
}"#;

#[test]
fn zero_2_on_two_data_ranks() {
    check(
        ZERO_2,
        "--mesh dp=2",
        expect![[r#"
        ds.json stands for --global-batch=16 --microbatch=8 --lr=0.002 --weight-decay=3e-7 --optimizer=adamw:beta1=0.8,beta2=0.999,eps=1e-7 --lr-schedule=constant:warmup=800 --fp16 --loss-scale=dynamic:initial=32768,interval=500,hysteresis=3,min=1 --zero=2 --clip=1.0
        ds.json has keys that are not honoured:
          steps_per_print: progress is shown by time and not by steps
          zero_optimization.allgather_bucket_size, zero_optimization.reduce_bucket_size: the compiler groups collectives itself, in buckets of 25 MiB
          zero_optimization.contiguous_gradients: the compiler gives every tensor its place in memory before the run
          scheduler.params.warmup_type "log": the warm-up is a line from lr/N to lr over N steps
    "#]],
    );
}

#[test]
fn one_data_rank_has_nothing_to_shard_over() {
    check(
        ZERO_2,
        "",
        expect![[r#"
        ds.json stands for --global-batch=16 --microbatch=16 --lr=0.002 --weight-decay=3e-7 --optimizer=adamw:beta1=0.8,beta2=0.999,eps=1e-7 --lr-schedule=constant:warmup=800 --fp16 --loss-scale=dynamic:initial=32768,interval=500,hysteresis=3,min=1 --clip=1.0
        ds.json has keys that are not honoured:
          steps_per_print: progress is shown by time and not by steps
          zero_optimization.allgather_bucket_size, zero_optimization.reduce_bucket_size: the compiler groups collectives itself, in buckets of 25 MiB
          zero_optimization.contiguous_gradients: the compiler gives every tensor its place in memory before the run
          scheduler.params.warmup_type "log": the warm-up is a line from lr/N to lr over N steps
          zero_optimization.stage: the mesh has one data rank, which holds all states; --mesh dp=N gives more
    "#]],
    );
}

/// In the form of Hugging Face's documentation of ZeRO-3 with offloading.
const ZERO_3: &str = r#"{
  "fp16": {
    "enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
    "min_loss_scale": 1
  },
  "optimizer": {
    "type": "AdamW",
    "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}
  },
  "scheduler": {
    "type": "WarmupDecayLR",
    "params": {
      "total_num_steps": "auto", "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"
    }
  },
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "cpu", "pin_memory": true},
    "offload_param": {"device": "nvme", "nvme_path": "/fast", "pin_memory": true, "buffer_count": 5},
    "overlap_comm": true,
    "contiguous_gradients": true,
    "sub_group_size": 1e9,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": true
  },
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "wall_clock_breakdown": false
}"#;

#[test]
fn zero_3_of_hugging_face_leaves_most_to_the_command_line() {
    check(
        ZERO_3,
        "--mesh dp=2 --lr 1e-4 --microbatch 4",
        expect![[r#"
            ds.json stands for --optimizer=adamw --lr-schedule=linear:warmup=0 --zero=3 --offload=optimizer --offload=parameters --memory=disk=/fast
            ds.json has keys that are not honoured:
              zero_optimization.offload_optimizer.pin_memory, zero_optimization.offload_param.pin_memory, zero_optimization.offload_param.buffer_count: the compiler decides when and how values move between memories
              zero_optimization.contiguous_gradients: the compiler gives every tensor its place in memory before the run
              zero_optimization.sub_group_size: each parameter is updated on its own
              zero_optimization.stage3_max_live_parameters, zero_optimization.stage3_max_reuse_distance: the compiler places the gather and the release of each parameter
              zero_optimization.stage3_gather_16bit_weights_on_model_save: the trained model always has all weights, in f32
            ds.json leaves to flags and their defaults (auto): fp16.enabled, optimizer.params.lr, optimizer.params.betas, optimizer.params.eps, optimizer.params.weight_decay, scheduler.params.total_num_steps, scheduler.params.warmup_max_lr, scheduler.params.warmup_num_steps, gradient_accumulation_steps, gradient_clipping, train_batch_size, train_micro_batch_size_per_gpu
        "#]],
    );
}

#[test]
fn tensors_of_both_sections_rest_in_one_file() {
    let both = |path: &str| {
        format!(
            r#"{{"zero_optimization": {{
              "offload_optimizer": {{"device": "nvme", "nvme_path": "/fast"}},
              "offload_param": {{"device": "nvme", "nvme_path": "{path}"}}
            }}, "activation_checkpointing": {{"cpu_checkpointing": true}}}}"#
        )
    };
    check(
        &both("/fast"),
        "--mesh dp=2",
        expect![[r#"
        ds.json stands for --offload=optimizer --memory=disk=/fast --offload=parameters --offload=activations
        ds.json has keys that are not honoured:
          activation_checkpointing.cpu_checkpointing: --memory decides which activations are computed again
    "#]],
    );
    check(
        &both("/slow"),
        "--mesh dp=2",
        expect![[r#"
        ds.json stands for --offload=optimizer --memory=disk=/fast --offload=parameters --offload=activations
        ds.json has keys that are not honoured:
          zero_optimization.offload_param.nvme_path: all tensors on a disk rest in one file, in /fast
          activation_checkpointing.cpu_checkpointing: --memory decides which activations are computed again
    "#]],
    );
    check(
        r#"{"client": {"opts": {"with_activation_offload": true}}}"#,
        "",
        expect![[r#"
        ds.json stands for --offload=activations
    "#]],
    );
}

#[test]
fn lion_has_the_decays_of_deepspeed() {
    check(
        r#"{"optimizer": {"type": "Lion", "params": {"lr": 1e-4}}}"#,
        "",
        expect![[r#"
        ds.json stands for --lr=1e-4 --optimizer=lion:beta2=0.999 --weight-decay=0
    "#]],
    );
    check(
        r#"{"optimizer": {"type": "lion", "params": {"betas": [0.95, 0.98]}}}"#,
        "",
        expect![[r#"
        ds.json stands for --optimizer=lion:beta1=0.95,beta2=0.98 --weight-decay=0
    "#]],
    );
}

#[test]
fn autocast_names_its_type() {
    for dtype in ["bfloat16", "torch.float16", "float32"] {
        let json = format!(r#"{{"torch_autocast": {{"enabled": true, "dtype": "{dtype}"}}}}"#);
        let flag = match dtype {
            "bfloat16" => "stands for --bf16\n",
            "torch.float16" => "stands for --fp16\n",
            _ => "stands for no flag\n",
        };
        let notes = translated(&json, "", None);
        assert!(notes.starts_with("ds.json ") && notes.contains(flag), "{dtype}: {notes}");
    }
}

#[test]
fn bf16_with_accumulation_and_checkpoints_of_activations() {
    let json = r#"{
      "train_micro_batch_size_per_gpu": 4,
      "gradient_accumulation_steps": 8,
      "optimizer": {"type": "AdamW", "params": {"lr": 1.5e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
      "scheduler": {
        "type": "WarmupCosineLR",
        "params": {"warmup_num_steps": 100, "total_num_steps": 5000, "warmup_type": "linear", "cos_min_ratio": 0.1}
      },
      "bf16": {"enabled": true},
      "data_types": {"grad_accum_dtype": "fp32"},
      "communication_data_type": "bf16",
      "zero_optimization": {"stage": 1},
      "gradient_clipping": 1.0,
      "activation_checkpointing": {
        "partition_activations": true, "contiguous_memory_optimization": false, "cpu_checkpointing": true,
        "number_checkpoints": 4
      },
      "tensor_parallel": {"autotp_size": 2},
      "seed": 7,
      "wall_clock_breakdown": true,
      "tensorboard": {"enabled": true, "output_path": "logs", "job_name": "run"},
      "wandb": {"enabled": false}
    }"#;
    check(
        json,
        "",
        expect![[r#"
            ds.json stands for --mesh=tp=2 --microbatch=4 --global-batch=32 --lr=1.5e-4 --weight-decay=0.1 --optimizer=adamw:beta1=0.9,beta2=0.95 --lr-schedule=cosine:warmup=100,min=1.4999999999999999e-5,steps=5000 --bf16 --grad-dtype=f32 --offload=activations --recompute=full --clip=1.0 --seed=7 --profile
            ds.json has keys that are not honoured:
              activation_checkpointing.partition_activations: --sequence-parallel splits kept values over tp
              activation_checkpointing.number_checkpoints: a value is kept between every two blocks of the model
              tensorboard: metrics.jsonl has the numbers of each step
              communication_data_type: gradients are sent in the type of data_types.grad_accum_dtype
              zero_optimization.stage: the mesh has one data rank, which holds all states; --mesh dp=N gives more
        "#]],
    );
    // Eight processes of a launcher are four data ranks, and two ranks of tp.
    let started = translated(json, "", Some(8));
    assert!(started.contains("--mesh=tp=2 --microbatch=4 --global-batch=128"), "{started}");
    assert!(started.contains("--zero=1"), "{started}");
    check(
        json,
        "--mesh dp=2 --bf16 --lr 1e-2",
        expect![[r#"
            ds.json stands for --microbatch=4 --global-batch=64 --weight-decay=0.1 --optimizer=adamw:beta1=0.9,beta2=0.95 --lr-schedule=cosine:warmup=100,min=0.001,steps=5000 --grad-dtype=f32 --zero=1 --offload=activations --recompute=full --clip=1.0 --seed=7 --profile
            ds.json has keys that are not honoured:
              activation_checkpointing.partition_activations: --sequence-parallel splits kept values over tp
              activation_checkpointing.number_checkpoints: a value is kept between every two blocks of the model
              tensorboard: metrics.jsonl has the numbers of each step
              tensor_parallel.autotp_size: --mesh dp=2 on the command line, which wins, has tp=1 and not 2
              communication_data_type: gradients are sent in the type of data_types.grad_accum_dtype
        "#]],
    );
}

/// In the form of DeepSpeed's `bing_bert` example.
#[test]
fn one_bit_adam_of_bing_bert() {
    check(
        r#"{
          "train_batch_size": 4096,
          "train_micro_batch_size_per_gpu": 16,
          "steps_per_print": 100,
          "prescale_gradients": false,
          "optimizer": {
            "type": "OneBitAdam",
            "params": {
              "lr": 4e-4, "weight_decay": 0.01, "bias_correction": false, "freeze_step": 23000,
              "comm_backend_name": "nccl"
            }
          },
          "gradient_clipping": 1.0,
          "wall_clock_breakdown": false,
          "fp16": {"enabled": true, "loss_scale": 0}
        }"#,
        "--mesh dp=64",
        expect![[r#"
            ds.json stands for --global-batch=4096 --microbatch=16 --lr=4e-4 --weight-decay=0.01 --optimizer=adamw --fp16 --loss-scale=dynamic:initial=65536,interval=1000,hysteresis=2,min=1 --clip=1.0
            ds.json has keys that are not honoured:
              steps_per_print: progress is shown by time and not by steps
              optimizer.params.bias_correction false: Adam corrects the bias of its moments
              optimizer.params.freeze_step, optimizer.params.comm_backend_name: gradients are sent without compression
              optimizer.type "OneBitAdam": the rule is that of AdamW, and gradients are sent without compression
        "#]],
    );
}

/// In the form of PatrickStar's `examples/ps_config.py`.
const PATRICKSTAR: &str = r#"{
  "optimizer": {
    "type": "Adam",
    "params": {"lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0, "use_hybrid_adam": true}
  },
  "fp16": {
    "enabled": true, "loss_scale": 0, "initial_scale_power": 10, "loss_scale_window": 1000, "hysteresis": 2,
    "min_loss_scale": 1
  },
  "default_chunk_size": 67108864,
  "release_after_init": true,
  "use_fake_dist": false,
  "use_cpu_embedding": true,
  "client": {
    "mem_tracer": {
      "use_async_mem_monitor": true, "warmup_gpu_chunk_mem_ratio": 0.1, "overall_gpu_mem_ratio": 0.9,
      "overall_cpu_mem_ratio": 0.9, "margin_use_ratio": 0.8, "use_fake_dist": false, "with_static_partition": false
    },
    "opts": {"with_mem_saving_comm": true, "with_mem_cache": false, "with_async_move": true}
  }
}"#;

#[test]
fn patrickstar_spreads_all_states() {
    check(
        PATRICKSTAR,
        "--mesh dp=2",
        expect![[r#"
            ds.json stands for --lr=0.001 --weight-decay=0 --optimizer=adam:beta1=0.9,beta2=0.999,eps=1e-6 --fp16 --loss-scale=dynamic:initial=1024,interval=1000,hysteresis=1,min=1 --zero=3 --offload=embeddings
            ds.json has keys that are not honoured:
              optimizer.params.use_hybrid_adam, client.opts.with_async_move: the compiler decides when and how values move between memories
              default_chunk_size, client.opts.with_mem_saving_comm: parameters are sharded one by one, and not in chunks
              release_after_init: each rank makes the initial values of its own part alone
              client.mem_tracer.use_async_mem_monitor, client.mem_tracer.warmup_gpu_chunk_mem_ratio, client.mem_tracer.overall_gpu_mem_ratio, client.mem_tracer.overall_cpu_mem_ratio, client.mem_tracer.margin_use_ratio: memory is planned before the run and not traced; --memory takes the bytes of a device
        "#]],
    );
    check(
        PATRICKSTAR,
        "--fp16",
        expect![[r#"
            ds.json stands for --lr=0.001 --weight-decay=0 --optimizer=adam:beta1=0.9,beta2=0.999,eps=1e-6 --loss-scale=dynamic:initial=1024,interval=1000,hysteresis=1,min=1 --offload=embeddings
            ds.json has keys that are not honoured:
              optimizer.params.use_hybrid_adam, client.opts.with_async_move: the compiler decides when and how values move between memories
              default_chunk_size, client.opts.with_mem_saving_comm: parameters are sharded one by one, and not in chunks
              release_after_init: each rank makes the initial values of its own part alone
              client.mem_tracer.use_async_mem_monitor, client.mem_tracer.warmup_gpu_chunk_mem_ratio, client.mem_tracer.overall_gpu_mem_ratio, client.mem_tracer.overall_cpu_mem_ratio, client.mem_tracer.margin_use_ratio: memory is planned before the run and not traced; --memory takes the bytes of a device
        "#]],
    );
}

#[test]
fn the_defaults_of_a_section_are_those_of_deepspeed() {
    check(
        r#"{"optimizer": {"type": "Adam"}, "scheduler": {"type": "WarmupDecayLR", "params": {}}, "fp16": {"enabled": true}}"#,
        "",
        expect![[r#"
            ds.json stands for --lr=0.001 --optimizer=adamw --weight-decay=0 --lr-schedule=linear:warmup=1000 --fp16 --loss-scale=dynamic:initial=65536,interval=1000,hysteresis=2,min=1
            ds.json has keys that are not honoured:
              scheduler.params.warmup_type "log": the warm-up is a line from lr/N to lr over N steps
        "#]],
    );
    check(
        r#"{"optimizer": {"type": "Adagrad"}, "zero_optimization": {"stage": 0}}"#,
        "",
        expect![[r#"
        ds.json stands for --lr=0.01 --optimizer=adagrad --weight-decay=0
    "#]],
    );
    check(
        r#"{"optimizer": {"type": "Adam", "params": {"adam_w_mode": false, "torch_adam": true}}}"#,
        "",
        expect![[r#"
            ds.json stands for --optimizer=adam --weight-decay=0
            ds.json has keys that are not honoured:
              optimizer.params.torch_adam: the whole step is always compiled
        "#]],
    );
    check(
        r#"{"optimizer": {"type": "AdamW", "params": {"torch_adam": true}}}"#,
        "",
        expect![[r#"
        ds.json stands for --optimizer=adamw --weight-decay=0.01
        ds.json has keys that are not honoured:
          optimizer.params.torch_adam: the whole step is always compiled
    "#]],
    );
    check(
        r#"{"optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "nesterov": true, "dampening": 0.1}}}"#,
        "",
        expect![[r#"
            ds.json stands for --lr=0.1 --optimizer=nesterov:momentum=0.9 --weight-decay=0
            ds.json has keys that are not honoured:
              optimizer.params.dampening 0.1: the momentum has no dampening
        "#]],
    );
    check(
        "{}",
        "",
        expect![[r#"
        ds.json stands for no flag
    "#]],
    );
}

#[test]
fn a_static_scale_and_older_forms_are_read() {
    check(
        r#"{"fp16": {"enabled": true, "loss_scale": 1024, "loss_scale_window": 100}, "zero_optimization": true, "allgather_size": 1e8}"#,
        "--mesh dp=2",
        expect![[r#"
            ds.json stands for --fp16 --loss-scale=1024 --zero=1
            ds.json has keys that are not honoured:
              allgather_size: the compiler groups collectives itself, in buckets of 25 MiB
        "#]],
    );
    check(
        r#"{"bfloat16": {"enabled": true}, "zero_optimization": {"stage": 2, "cpu_offload": true}, "gradient_clipping": 0}"#,
        "--mesh dp=2",
        expect![[r#"
            ds.json stands for --bf16 --zero=2 --offload=optimizer
        "#]],
    );
    check(
        r#"{"torch_autocast": {"enabled": true, "dtype": "float16"}}"#,
        "",
        expect![[r#"
        ds.json stands for --fp16
    "#]],
    );
}

#[test]
fn the_command_line_wins() {
    check(
        r#"{
          "train_batch_size": 32, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 4,
          "fp16": {"enabled": true},
          "optimizer": {"type": "Lamb", "params": {"lr": 0.01}},
          "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.001, "cycle_max_lr": 0.1}},
          "activation_checkpointing": {"number_checkpoints": 1}
        }"#,
        "--microbatch 4 --bf16 --optimizer sgd --lr-schedule constant --memory 1GiB",
        expect![[r#"
            ds.json stands for --global-batch=32 --lr=0.01
            ds.json has keys that are not honoured:
              scheduler.params.cycle_min_lr, scheduler.params.cycle_max_lr: there is no such schedule
              activation_checkpointing.number_checkpoints: a value is kept between every two blocks of the model
        "#]],
    );
}

#[test]
fn two_of_three_batch_sizes_give_the_third() {
    let stands_for = |json: &str, line: &str| {
        let notes = translated(json, line, None);
        notes.lines().next().unwrap_or_default().trim_start_matches("ds.json stands for ").to_owned()
    };
    let total_and_steps = r#"{"train_batch_size": 32, "gradient_accumulation_steps": 4}"#;
    assert_eq!(stands_for(total_and_steps, "--mesh dp=2"), "--global-batch=32 --microbatch=4");
    assert_eq!(stands_for(r#"{"train_batch_size": 32}"#, "--mesh dp=2"), "--global-batch=32 --microbatch=16");
    let micro_and_steps = r#"{"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 4}"#;
    assert_eq!(stands_for(micro_and_steps, "--mesh dp=2,tp=4"), "--microbatch=8 --global-batch=64");
    assert_eq!(stands_for(micro_and_steps, "--microbatch 2"), "--global-batch=8");
    assert_eq!(stands_for(r#"{"train_micro_batch_size_per_gpu": 8}"#, ""), "--microbatch=8");
    assert_eq!(stands_for(r#"{"gradient_accumulation_steps": 4}"#, "--microbatch 3"), "--global-batch=12");
    assert_eq!(stands_for("{}", "--global-batch 32"), "no flag");
}

#[test]
fn meshes_of_several_axes_come_from_several_sections() {
    check(
        r#"{
          "pipeline": {"stages": 2, "partition": "parameters", "activation_checkpoint_interval": 1},
          "expert_parallel": {"enabled": true, "autoep_size": 2, "preset_model": "mixtral"},
          "tensor_parallel": {"autotp_size": 2, "preset_model": "llama"}
        }"#,
        "",
        expect![[r#"
            ds.json stands for --mesh=pp=2,ep=2,tp=2 --recompute=full
            ds.json has keys that are not honoured:
              pipeline.partition: stages take equal times; --cut overrides them
              expert_parallel.preset_model: the experts are found in the graph, and the model says how it routes tokens
              tensor_parallel.preset_model: shards follow from the graph; --shard overrides them
        "#]],
    );
}
