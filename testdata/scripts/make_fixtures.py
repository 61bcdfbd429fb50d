#!/usr/bin/env python3
"""Deterministic ONNX training fixtures: small random-init real architectures.
usage: python testdata/scripts/make_fixtures.py [name ...]    (default: all)
Writes models/<name>.<exporter>.onnx, models/<name>.io.npz (inputs, torch logits),
models/<name>.train.npz (labels, loss, grad.*, param.*), models/<name>.train.json
and export_report.json (merged)."""
import sys, os, json, time, traceback, warnings, collections, logging
os.environ.setdefault("HF_HUB_OFFLINE", "1"); os.environ["CUDA_VISIBLE_DEVICES"] = ""
warnings.filterwarnings("ignore"); logging.disable(logging.WARNING)
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F, onnx, onnxruntime as ort
import transformers as T
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))); M = os.path.join(ROOT, "models"); os.makedirs(M, exist_ok=True)
torch.set_num_threads(2); torch.use_deterministic_algorithms(True, warn_only=True)
SEED = 1234

class Wrap(nn.Module):
    """logits only, no cache; keeps HF parameter names under 'm.'"""
    def __init__(self, m, keys, **kw):
        super().__init__(); self.m = m; self.keys = keys; self.kw = kw
    def forward(self, *xs):
        out = self.m(**dict(zip(self.keys, xs)), **self.kw)
        return out.logits if hasattr(out, "logits") else out
class WrapLoss(nn.Module):
    """scalar loss = cross_entropy(logits.view(-1,V), labels.view(-1)), no shift"""
    def __init__(self, m, keys, **kw):
        super().__init__(); self.m = m; self.keys = keys; self.kw = kw
    def forward(self, *xs):
        out = self.m(**dict(zip(self.keys, xs[:-1])), **self.kw)
        out = out.logits if hasattr(out, "logits") else out
        return F.cross_entropy(out.reshape(-1, out.shape[-1]), xs[-1].reshape(-1))
class WrapHFLoss(nn.Module):
    def __init__(self, m): super().__init__(); self.m = m
    def forward(self, input_ids, labels): return self.m(input_ids=input_ids, labels=labels, use_cache=False).loss
class MLP(nn.Module):
    def __init__(self, *d, act=nn.ReLU):
        super().__init__(); L = []
        for i in range(len(d)-1):
            L.append(nn.Linear(d[i], d[i+1]))
            if i < len(d)-2: L.append(act())
        self.net = nn.Sequential(*L)
    def forward(self, x): return self.net(x)
class LSTMNet(nn.Module):
    def __init__(self, v=64, h=48):
        super().__init__(); self.emb = nn.Embedding(v, h); self.lstm = nn.LSTM(h, h, 2, batch_first=True); self.out = nn.Linear(h, v)
    def forward(self, x): y, _ = self.lstm(self.emb(x)); return self.out(y)

def perturb(m, skip=False):
    """a freshly initialised net has all-ones / all-zeros LayerNorm & bias parameters; torch's dynamo exporter (optimize=True)
    MERGES identical initializers and drops zero biases, so make every constant parameter distinct (as in a trained net)"""
    g = torch.Generator().manual_seed(SEED+7)
    with torch.no_grad():
        for p in m.parameters():
            n = 0.05 * torch.randn(p.shape, generator=g)
            if p.numel() and bool((p == p.flatten()[0]).all()): p.add_(n)
    return m
def ids(g, B, S, V): return torch.randint(0, V, (B, S), generator=g)
B, S, V = 2, 32, 512
def build(name, attn="sdpa", **kw):
    r = build0(name, attn, **kw); perturb(r[0]); return r
def build0(name, attn="sdpa", experts="batched_mm", mask=False):
    """-> (module, input names, inputs, label tensor, dynamic dims per input)"""
    torch.manual_seed(SEED); g = torch.Generator().manual_seed(SEED+1); lab = ids(g, B, S, V); x = ids(g, B, S, V)
    seqdyn = {0: "batch", 1: "seq"}; kw = dict(use_cache=False)
    I, X, D = ["input_ids"], (x,), (seqdyn,)
    if mask: I, X, D = I + ["attention_mask"], X + (torch.ones(B, S, dtype=torch.int64),), D * 2
    if name == "gpt2":
        c = T.GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=V, n_positions=64, resid_pdrop=0., embd_pdrop=0., attn_pdrop=0., attn_implementation=attn)
        return Wrap(T.GPT2LMHeadModel(c), I, **kw), I, X, lab, D
    if name == "llama":
        c = T.LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=V, max_position_embeddings=64, tie_word_embeddings=False, attn_implementation=attn)
        return Wrap(T.LlamaForCausalLM(c), I, **kw), I, X, lab, D
    if name == "bert":
        c = T.BertConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, vocab_size=V, max_position_embeddings=64, hidden_dropout_prob=0., attention_probs_dropout_prob=0., attn_implementation=attn)
        am = torch.ones(B, S, dtype=torch.int64); am[1, 24:] = 0
        return Wrap(T.BertForMaskedLM(c), ["input_ids", "attention_mask"]), ["input_ids", "attention_mask"], (x, am), lab, (seqdyn, seqdyn)
    if name == "mixtral":
        c = T.MixtralConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=V, max_position_embeddings=64, num_local_experts=4, num_experts_per_tok=2, attn_implementation=attn, experts_implementation=experts)
        return Wrap(T.MixtralForCausalLM(c), I, **kw), I, X, lab, D
    if name == "qwen2moe":
        c = T.Qwen2MoeConfig(hidden_size=64, intermediate_size=128, moe_intermediate_size=64, shared_expert_intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=V, max_position_embeddings=64, num_experts=4, num_experts_per_tok=2, attn_implementation=attn, experts_implementation=experts)
        return Wrap(T.Qwen2MoeForCausalLM(c), I, **kw), I, X, lab, D
    if name == "vit":
        c = T.ViTConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8, num_labels=10, hidden_dropout_prob=0., attention_probs_dropout_prob=0., attn_implementation=attn)
        return Wrap(T.ViTForImageClassification(c), ["pixel_values"]), ["pixel_values"], (torch.randn(4, 3, 32, 32, generator=g),), torch.randint(0, 10, (4,), generator=g), ({0: "batch"},)
    if name == "resnet":
        c = T.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 32, 64], depths=[2, 2, 2, 2], layer_type="basic", num_labels=10)
        return Wrap(T.ResNetForImageClassification(c), ["pixel_values"]), ["pixel_values"], (torch.randn(4, 3, 64, 64, generator=g),), torch.randint(0, 10, (4,), generator=g), ({0: "batch"},)
    if name == "t5":
        c = T.T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=V, dropout_rate=0., decoder_start_token_id=0, **({"attn_implementation": attn} if attn == "eager" else {}))
        d = ids(g, B, 16, V)
        return Wrap(T.T5ForConditionalGeneration(c), ["input_ids", "decoder_input_ids"], **kw), ["input_ids", "decoder_input_ids"], (x, d), lab[:, :16].contiguous(), (seqdyn, {0: "batch", 1: "dseq"})
    if name == "mlp":
        return Wrap2(MLP(64, 128, 64, 10)), ["x"], (torch.randn(8, 64, generator=g),), torch.randint(0, 10, (8,), generator=g), ({0: "batch"},)
    if name == "lstm":
        return Wrap2(LSTMNet()), ["tokens"], (x % 64,), lab % 64, (seqdyn,)
    raise KeyError(name)
class Wrap2(nn.Module):
    def __init__(self, m): super().__init__(); self.m = m
    def forward(self, x): return self.m(x)

def ce(logits, lab): return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), lab.reshape(-1))
def walk(graph, acc, depth=0):
    for n in graph.node:
        acc[(n.domain + "::" if n.domain else "") + n.op_type] += 1
        for a in n.attribute:
            if a.type == onnx.AttributeProto.GRAPH: walk(a.g, acc, depth+1); acc["(subgraph)"] += 1
            for gg in a.graphs: walk(gg, acc, depth+1)
def describe(path):
    m = onnx.load(path, load_external_data=False); acc = collections.Counter(); walk(m.graph, acc)
    facc = {f"{f.domain}::{f.name}": dict(collections.Counter(n.op_type for n in f.node)) for f in m.functions}
    def vi(v): return [v.name, onnx.TensorProto.DataType.Name(v.type.tensor_type.elem_type), [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]]
    dt = collections.Counter(onnx.TensorProto.DataType.Name(i.data_type) for i in m.graph.initializer)
    return dict(bytes=os.path.getsize(path), data_bytes=os.path.getsize(path+".data") if os.path.exists(path+".data") else 0, ir=m.ir_version, producer=f"{m.producer_name} {m.producer_version}", opset={o.domain or "ai.onnx": o.version for o in m.opset_import},
        nodes=len(m.graph.node), ops=dict(sorted(acc.items())), functions=facc, inputs=[vi(v) for v in m.graph.input], outputs=[vi(v) for v in m.graph.output],
        initializers=len(m.graph.initializer), init_dtypes=dict(dt), init_numel=int(sum(np.prod(i.dims) if len(i.dims) else 1 for i in m.graph.initializer)),
        init_names=[f"{i.name}{list(i.dims)}" for i in m.graph.initializer][:400], value_info=len(m.graph.value_info),
        external=sum(1 for i in m.graph.initializer if i.data_location == onnx.TensorProto.EXTERNAL),
        metadata=sorted({p.key for n in m.graph.node for p in n.metadata_props}), device_cfg=len(getattr(m, "configuration", [])))
def ortrun(path, feeds):
    so = ort.SessionOptions(); so.log_severity_level = 4; so.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    s = ort.InferenceSession(path, so, providers=["CPUExecutionProvider"])
    names = [i.name for i in s.get_inputs()]
    return s.run(None, {n: v.numpy() for n, v in zip(names, feeds)})[0]

REP_PATH = os.path.join(ROOT, "export_report.json"); REP = json.load(open(REP_PATH)) if os.path.exists(REP_PATH) else {}
def export(tag, mod, names, inputs, ref, dynamo, dyn=None, opset=None, training=None, out="logits", **kw):
    path = os.path.join(M, tag + ".onnx"); t0 = time.time(); r = {}
    for p in (path, path + ".data"):
        if os.path.exists(p): os.remove(p)
    try:
        a = dict(input_names=names, output_names=[out], dynamo=dynamo)
        if opset: a["opset_version"] = opset
        if dynamo:
            a.update(external_data=False)
            if dyn: # Wrap uses *xs -> one tuple arg
                D = {}; mk = lambda d: {k: D.setdefault(v, torch.export.Dim(v, min=2, max=64 if "seq" in v else 1024)) for k, v in d.items()}
                ds = tuple(mk(d) for d in dyn)
                a["dynamic_shapes"] = (ds,) if isinstance(mod, (Wrap, WrapLoss)) else ds
        else:
            if dyn: a["dynamic_axes"] = {n: d for n, d in zip(names, dyn)}
            if training is not None: a["training"] = training
        a.update(kw)
        import io, contextlib
        buf = io.StringIO()
        with contextlib.redirect_stdout(buf): torch.onnx.export(mod, inputs, path, **a)
        r = describe(path)
        try: onnx.checker.check_model(path, full_check=True); r["checker"] = "ok"
        except Exception as e: r["checker"] = str(e)[:300]
        try:
            y = ortrun(path, inputs); r["ort_maxdiff"] = float(np.abs(y - ref).max()) if y.shape == ref.shape else f"shape {y.shape} vs {ref.shape}"
        except Exception as e: r["ort_error"] = str(e)[:400]
    except Exception as e:
        msg = str(e); root = e
        while root.__cause__ is not None: root = root.__cause__
        r = {"error": f"{type(e).__name__}: {msg[:900]}", "root_cause": f"{type(root).__name__}: {str(root)[:900]}"}
    r["seconds"] = round(time.time()-t0, 1); REP[tag] = r
    print(f"{tag:34s}", "FAIL " + r["error"][:150].replace("\n", " ") if "error" in r else f"ok nodes={r['nodes']} opset={r['opset']} ir={r['ir']} {r['bytes']}B ort={r.get('ort_maxdiff', r.get('ort_error'))} chk={r['checker'][:60]}", f"{r['seconds']}s", flush=True)
    json.dump(REP, open(REP_PATH, "w"), indent=1)

def train_fixture(name, train_mode=False):
    sfx = "-trainmode" if train_mode else ""
    js = {}; arrs = {}
    for dt in (torch.float32, torch.float64):
        mod, names, inputs, lab, _ = build(name); mod.train(train_mode); mod.to(dt)
        inp = tuple(i.to(dt) if i.is_floating_point() else i for i in inputs)
        k = "f32" if dt == torch.float32 else "f64"
        sd0 = {n: p.detach().clone() for n, p in mod.named_parameters()}; bufs0 = {n: b.detach().clone() for n, b in mod.named_buffers()}
        loss = ce(mod(*inp), lab); loss.backward(); js[f"loss_{k}"] = loss.item()
        if k == "f32":
            arrs["labels"] = lab.numpy(); 
            for i, n in zip(inputs, names): arrs["input." + n] = i.numpy()
            for n, p in mod.named_parameters(): arrs["param." + n] = sd0[n].numpy(); arrs["grad." + n] = p.grad.numpy().copy() if p.grad is not None else np.zeros(0, np.float32)
            for n, b in bufs0.items():
                if "running" in n: arrs["buffer." + n] = b.numpy()
            js["no_grad_params"] = [n for n, p in mod.named_parameters() if p.grad is None]
            g32 = {n: p.grad.numpy().copy() for n, p in mod.named_parameters() if p.grad is not None}
        else: js["grad_f32_vs_f64_max_rel"] = max(float(np.abs(g32[n]-p.grad.numpy()).max()/(np.abs(p.grad.numpy()).max()+1e-12)) for n, p in mod.named_parameters() if p.grad is not None and p.grad.abs().max() > 1e-7)
        for oname, mk in {"adamw": lambda ps: torch.optim.AdamW(ps, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01),
                          "sgd_momentum": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9)}.items():
            with torch.no_grad():
                for n, p in mod.named_parameters(): p.copy_(sd0[n])
                for n, b in mod.named_buffers(): b.copy_(bufs0[n])
            opt = mk(mod.parameters()); seq = []
            for _ in range(20):
                opt.zero_grad(); l = ce(mod(*inp), lab); l.backward(); opt.step(); seq.append(l.item())
            js[f"losses_{oname}_{k}"] = seq
            if k == "f32" and oname == "adamw": js["final_param_l2_adamw"] = {n: float(p.detach().double().norm()) for n, p in mod.named_parameters()}
    js["optim"] = {"adamw": "lr=1e-3 betas=(.9,.999) eps=1e-8 wd=0.01 on all params", "sgd_momentum": "lr=0.05 momentum=0.9 dampening=0", "loss": "mean cross entropy over all positions, no shift, model eval() unless -trainmode, losses[i] is before step i"}
    np.savez_compressed(os.path.join(M, f"{name}{sfx}.train.npz"), **arrs); json.dump(js, open(os.path.join(M, f"{name}{sfx}.train.json"), "w"), indent=1)
    print(f"{name+sfx:20s} loss0={js['loss_f32']:.6f} last adamw f32={js['losses_adamw_f32'][-1]:.6f} f64={js['losses_adamw_f64'][-1]:.6f} gradrel={js['grad_f32_vs_f64_max_rel']:.2e}", flush=True)

ALL = ["mlp", "gpt2", "llama", "bert", "resnet", "vit", "t5", "lstm", "mixtral", "qwen2moe"]
def do(name):
    mod, names, inputs, lab, dyn = build(name); mod.eval()
    with torch.no_grad(): ref = mod(*inputs).numpy()
    np.savez_compressed(os.path.join(M, name + ".io.npz"), logits=ref, labels=lab.numpy(), **{"input." + n: i.numpy() for n, i in zip(names, inputs)})
    export(f"{name}.dynamo", mod, names, inputs, ref, True)
    export(f"{name}.dynamo-dyn", build(name)[0].eval(), names, inputs, ref, True, dyn=dyn)
    export(f"{name}.legacy", build(name)[0].eval(), names, inputs, ref, False)
    export(f"{name}.legacy-dyn", build(name)[0].eval(), names, inputs, ref, False, dyn=dyn)
    if name in ("gpt2", "llama", "mixtral", "qwen2moe"):
        mm, nn_, ii, _, dd = build(name, mask=True)
        with torch.no_grad(): assert np.allclose(mm.eval()(*ii).numpy(), ref, atol=1e-5)
        export(f"{name}.legacy-mask", mm.eval(), nn_, ii, ref, False)
        export(f"{name}.legacy-mask-dyn", build(name, mask=True)[0].eval(), nn_, ii, ref, False, dyn=dd)
        export(f"{name}.dynamo-mask-dyn", build(name, mask=True)[0].eval(), nn_, ii, ref, True, dyn=dd)
        export(f"{name}.legacy-mask-train-nofold", build(name, mask=True)[0].train(), nn_, ii, ref, False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
    if name in ("mixtral", "qwen2moe"):
        for e in ("eager", "grouped_mm"):
            export(f"{name}.dynamo-experts-{e}", build(name, experts=e)[0].eval(), names, inputs, ref, True)
            export(f"{name}.legacy-mask-experts-{e}", build(name, experts=e, mask=True)[0].eval(), nn_, ii, ref, False)
        export(f"{name}.dynamo-op23", build(name)[0].eval(), names, inputs, ref, True, opset=23)
    if name == "gpt2":
        m0, n0, i0, _, _ = build0(name); m0.eval()
        with torch.no_grad(): r0 = m0(*i0).numpy()
        export("gpt2-rawinit.dynamo", m0, n0, i0, r0, True)
        export("gpt2-rawinit.dynamo-noopt", build0(name)[0].eval(), n0, i0, r0, True, optimize=False)
    if name == "t5":
        export("t5.dynamo-eager-dyn", build(name, "eager")[0].eval(), names, inputs, ref, True, dyn=dyn)
    if name in ("gpt2", "llama", "bert", "t5", "mixtral"):
        export(f"{name}.dynamo-eager", build(name, "eager")[0].eval(), names, inputs, ref, True)
    if name in ("gpt2", "llama", "mlp"):
        for o in (17, 18, 23, 24): export(f"{name}.dynamo-op{o}", build(name)[0].eval(), names, inputs, ref, True, opset=o)
        export(f"{name}.dynamo-noopt", build(name)[0].eval(), names, inputs, ref, True, optimize=False)
        export(f"{name}.legacy-op13", build(name)[0].eval(), names, inputs, ref, False, opset=13)
        export(f"{name}.legacy-train-nofold", build(name)[0].train(), names, inputs, ref, False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
    if name == "resnet":
        tm = build(name)[0].train(); tm2 = build(name)[0].train()
        with torch.no_grad(): reft = build(name)[0].train()(*inputs).numpy()
        export("resnet.dynamo-noopt", build(name)[0].eval(), names, inputs, ref, True, optimize=False)
        export("resnet.dynamo-trainmode", tm, names, inputs, reft, True)
        export("resnet.legacy-trainmode", tm2, names, inputs, reft, False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
        export("resnet.legacy-preserve-nofold", build(name)[0].eval(), names, inputs, ref, False, training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False)
    if name in ("gpt2", "llama", "mlp"):
        w = WrapLoss(mod.m, names if name != "mlp" else ["x"], **({"use_cache": False} if name != "mlp" else {}))
        if name == "mlp":
            class L(nn.Module):
                def __init__(s, m): super().__init__(); s.m = m
                def forward(s, x, labels): return F.cross_entropy(s.m(x), labels)
            w = L(mod.m)
        with torch.no_grad(): rl = w(*inputs, lab).numpy()
        export(f"{name}-loss.dynamo", w, names + ["labels"], inputs + (lab,), rl, True, out="loss")
        export(f"{name}-loss.legacy", w, names + ["labels"], inputs + (lab,), rl, False, out="loss")
    if name == "gpt2":
        w = WrapHFLoss(build(name)[0].m).eval()
        with torch.no_grad(): rl = w(*inputs, lab).numpy()
        export("gpt2-hfloss.dynamo", w, ["input_ids", "labels"], inputs + (lab,), rl, True, out="loss")
        export("gpt2-hfloss.legacy", w, ["input_ids", "labels"], inputs + (lab,), rl, False, out="loss")
        c = T.GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=V, n_positions=64)  # dropout .1, train mode
        torch.manual_seed(SEED); wd = Wrap(perturb(T.GPT2LMHeadModel(c)), ["input_ids"], use_cache=False).train()
        export("gpt2-dropout.dynamo", wd, names, inputs, ref, True)
        torch.manual_seed(SEED); wd = Wrap(perturb(T.GPT2LMHeadModel(c)), ["input_ids", "attention_mask"], use_cache=False).train()
        export("gpt2-dropout.legacy", wd, ["input_ids", "attention_mask"], build("gpt2", mask=True)[2], ref, False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
        h = build(name)[0].eval().half(); 
        with torch.no_grad(): rh = h(*inputs).numpy()
        export("gpt2-fp16.dynamo", h, names, inputs, rh, True)
        h = build(name)[0].eval().bfloat16(); export("gpt2-bf16.dynamo", h, names, inputs, ref, True)
    try: train_fixture(name)
    except Exception: traceback.print_exc()
    if name == "resnet": train_fixture(name, True)
if __name__ == "__main__":
    print("torch", torch.__version__, "transformers", T.__version__, "onnx", onnx.__version__, "ort", ort.__version__)
    for n in (sys.argv[1:] or ALL):
        try: do(n)
        except Exception: traceback.print_exc(); REP[n + "(build)"] = {"error": traceback.format_exc()[-900:]}
