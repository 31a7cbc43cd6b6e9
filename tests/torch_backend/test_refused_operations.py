"""Operations that the backend does not have are refused by their names."""

from __future__ import annotations

import pytest


def test_a_sum_with_a_factor_is_refused_by_name() -> None:
    """FSDP2 uses this operation after `set_gradient_divide_factor`; it prints as the address of an object."""
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    dist = pytest.importorskip("torch.distributed", reason="needs PyTorch")
    from collc.torch.calls import nccl_operation

    with pytest.raises(ValueError, match="cannot reduce by PREMUL_SUM: multiply by the factor"):
        nccl_operation(dist._make_nccl_premul_sum(0.25), torch.float32)
    with pytest.raises(ValueError, match=r"by SUM and AVG only, not by MAX$"):
        nccl_operation(dist.ReduceOp.MAX, torch.complex64)
    assert nccl_operation(dist.ReduceOp(dist.ReduceOp.MAX), torch.float32) == 2
