#!/usr/bin/env python3
"""GPT-3 175B shaped graph, real exporter, no weights: HF GPT2LMHeadModel built on torch 'meta' device, torch.onnx.export(dynamo=True),
every meta initializer replaced by onnx_ir.ExternalTensor pointing to a file that does not exist."""
import os, sys, time; os.environ["CUDA_VISIBLE_DEVICES"] = ""; os.environ["HF_HUB_OFFLINE"] = "1"
import torch, onnx_ir as ir, transformers as T, warnings, logging; warnings.filterwarnings("ignore"); logging.disable(logging.WARNING)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))); torch.set_num_threads(2)
L, D, H, S, V = [int(a) for a in (sys.argv[1:6] or (96, 12288, 96, 2048, 51200))]; out = sys.argv[6] if len(sys.argv) > 6 else ROOT + "/models/gpt3-175b-noweights.onnx"
class W(torch.nn.Module):
    def __init__(s, m): super().__init__(); s.m = m
    def forward(s, input_ids): return s.m(input_ids=input_ids, use_cache=False).logits
t0 = time.time()
with torch.device("meta"):
    m = W(T.GPT2LMHeadModel(T.GPT2Config(n_layer=L, n_embd=D, n_head=H, vocab_size=V, n_positions=S, resid_pdrop=0., embd_pdrop=0., attn_pdrop=0.))).eval()
    x = torch.zeros(1, S, dtype=torch.int64)
print("params", sum(p.numel() for p in m.parameters()), "build", time.time()-t0, flush=True)
opt = os.environ.get("OPT", "1") == "1"
p = torch.onnx.export(m, (x,), dynamo=True, input_names=["input_ids"], output_names=["logits"], optimize=False, verbose=False, opset_version=int(os.environ.get("OPSET", "20")))
print("export", time.time()-t0, "nodes", len(list(p.model.graph)), flush=True)
# optimize=True on meta weights fails (PassError), so: initializers -> graph inputs, run the same optimizer, turn them back
g = p.model.graph; held = {}
if opt:
    from onnxscript import optimizer
    for name, v in list(g.initializers.items()):
        held[name] = v
    tens = {n: v.const_value for n, v in held.items()}
    for n, v in held.items(): del g.initializers[n]; v.const_value = None; g.inputs.append(v)
    optimizer.optimize_ir(p.model) if hasattr(optimizer, "optimize_ir") else optimizer.optimize(p.model)
    for v in [v for v in g.inputs if v.name in tens]:
        g.inputs.remove(v); v.const_value = tens[v.name]
        if v.uses(): g.register_initializer(v)
    print("optimized nodes", len(list(g)), time.time()-t0, flush=True)
off = 0; ext = 0; sizes = []
for name, v in list(p.model.graph.initializers.items()):
    t = v.const_value; n = t.size
    raw = getattr(t, "raw", None)
    if raw is not None and isinstance(raw, torch.Tensor) and raw.device.type == "meta":
        nb = n * t.dtype.itemsize if hasattr(t.dtype, "itemsize") else n*4; nb = int(nb)
        v.const_value = ir.ExternalTensor("gpt3-175b-weights-not-shipped.bin", off, nb, t.dtype, shape=t.shape, name=name, base_dir=""); off += (nb + 4095)//4096*4096; ext += 1
    else: sizes.append((n*4, name, list(t.shape)))
print("external initializers", ext, "virtual bytes", off, "inline largest", sorted(sizes)[-5:])
import onnx
mp = ir.to_proto(p.model)
if "--keep-meta" not in sys.argv:
    for n in mp.graph.node: del n.metadata_props[:]   # stack traces etc. triple the size
    for v in mp.graph.value_info: del v.metadata_props[:]
open(out, "wb").write(mp.SerializeToString())
print(out, os.path.getsize(out), "nodes", len(mp.graph.node), "total", time.time()-t0)
