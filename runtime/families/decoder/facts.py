"""What a process computes on, as recorded facts: each one separately, none inferred from another (CALL-10)."""

from __future__ import annotations

from typing import Any

import torch

from .model import INFERENCE_MODE, Decoder

# What one lane's attention is: the kernel itself is torch's choice among the enabled ones, for this device.
ATTENTION = "scaled_dot_product_attention, one call a lane"


def runtime_facts(decoder: Decoder) -> dict[str, str | int | bool]:
    """The facts as they are now. Reads torch's state and changes none."""
    backends: Any = torch.backends  # partly untyped
    return {
        "torch_version": torch.__version__,
        "device": str(decoder.device),
        "device_name": torch.cuda.get_device_name(decoder.device) if decoder.device.type == "cuda" else "cpu",
        "cpu_capability": backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "weight_dtype": str(decoder.dtype).removeprefix("torch."),
        "cache_dtype": str(decoder.abi.dtype).removeprefix("torch."),
        "score_dtype": "float32",
        "eval_mode": not decoder.training,
        "inference_mode": INFERENCE_MODE,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "mkldnn_enabled": backends.mkldnn.enabled,
        "mkldnn_deterministic": backends.mkldnn.deterministic,
        "mkl_available": backends.mkl.is_available(),
        "attention": ATTENTION,
        "flash_attention_enabled": backends.cuda.flash_sdp_enabled(),
        "memory_efficient_attention_enabled": backends.cuda.mem_efficient_sdp_enabled(),
        "math_attention_enabled": backends.cuda.math_sdp_enabled(),
    }
