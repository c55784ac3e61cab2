"""What a replay counts is held against what every kernel must do."""

import pytest

import workloads
from jaxbench_env.evaluator import verdict
from jaxbench_env.evaluator.result import Times


def fields(written=100.0, ms=1.0, uncertain=False, estimated=0.0):
    times = Times(candidate_ms=ms, baseline_ms=2.0, uncertain=uncertain)
    return {
        "times": times,
        "counters": {"hbm_written_bytes": written, "estimated_share": estimated},
    }


def test_a_program_that_writes_less_than_its_output_is_a_fault():
    verdict.require_traffic(100, fields(written=96))
    with pytest.raises(verdict.Failure, match="writes 90 bytes") as caught:
        verdict.require_traffic(100, fields(written=90))
    assert caught.value.fields["status"] == "hack_suspected"


@pytest.mark.parametrize("unsure", [{"uncertain": True}, {"estimated": 0.1}])
def test_what_was_not_replayed_is_not_held_against_a_program(unsure):
    verdict.require_traffic(100, fields(written=1, **unsure))


def test_a_time_below_the_floor_is_a_fault():
    assert verdict.judge_time(fields(ms=1.0), 1.0, "")["status"] == "ok"
    with pytest.raises(verdict.Failure, match="less than the 1.1000 ms"):
        verdict.judge_time(fields(ms=1.0), 1.1, "")


def test_every_kernel_must_read_what_no_value_can_spare_it():
    rms, paged = workloads.get("rms_norm"), workloads.get("paged_attention")
    flex, args = (
        workloads.get("flex_attention"),
        workloads.get("flex_attention").presets["v6e"].args,
    )
    assert rms.sure_input_bytes() == rms.presets["v6e"].nbytes
    assert paged.sure_share("k_pages") == 0 and paged.sure_share("queries") == 1
    spared = flex.presets["v6e"].nbytes - flex.sure_input_bytes()
    assert spared == args["rel_pos_bias"].nbytes / 2


@pytest.mark.parametrize("workload", map(workloads.get, workloads.ids()), ids=workloads.ids())
def test_inputs_that_may_be_left_unread_exist(workload):
    assert {*workload.partly_read} <= {*workload.presets["v6e"].args}
    assert 0 <= workload.sure_input_bytes() <= workload.presets["v6e"].nbytes
