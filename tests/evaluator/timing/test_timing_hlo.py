from hypothesis import given
from hypothesis import strategies as st

from jaxbench_env.evaluator.timing.hlo import Module, array_bytes, kernel_hash

HLO = """HloModule jit_f, is_scheduled=true

%fused_a (p: f32[8,128]) -> f32[8,128] {
  %p = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %m = f32[8,128]{1,0:T(8,128)} multiply(%p, %p), metadata={op_name="x"}
}

%fused_b (q: f32[8,128]) -> f32[8,128] {
  %q = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %n = f32[8,128]{1,0:T(8,128)} multiply(%q, %q), metadata={op_name="y"}
}

%fused_c (q: f32[8,128]) -> f32[8,128] {
  %q.1 = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %n.1 = f32[8,128]{1,0:T(8,128)} add(%q.1, %q.1)
}

%offloaded (a: f32[64,128], i: s32[8]) -> f32[8,128] {
  %a = f32[64,128]{1,0} parameter(0)
  %inner-start = (f32[8,128]) call-start(%a), async_execution_thread="sparsecore", to_apply=%z
  ROOT %inner-done = f32[8,128]{1,0} call-done(%inner-start)
}, execution_thread="sparsecore"

ENTRY %main (x: f32[8,128], y: s32[8]) -> f32[8,128] {
  %x = f32[8,128]{1,0:T(8,128)} parameter(0), sharding={replicated}
  %y = s32[8]{0:T(128)S(1)} parameter(1)
  %one = f32[8,128]{1,0:T(8,128)} fusion(%x), kind=kLoop, calls=%fused_a, metadata={op_name="x"}
  %two = f32[8,128]{1,0:T(8,128)} fusion(%one), kind=kLoop, calls=%fused_b, \
backend_config={"window_config":{"a":"1","estimated_cycles":"1234"}}
  %three = f32[8,128]{1,0:T(8,128)} fusion(%two), kind=kLoop, calls=%fused_c
  %k.1 = f32[8,128]{1,0} custom-call(%x), custom_call_target="t", backend_config={"body":"AA"}
  %k.2 = f32[8,128]{1,0} custom-call(%x), custom_call_target="t", backend_config={"body":"AA"}
  %k.3 = f32[8,128]{1,0} custom-call(%x), custom_call_target="t", backend_config={"body":"BB"}
  %s = ((), (), (s32[1]{0:T(128)S(2)})) call-start(), \
async_execution_thread="sparsecore", to_apply=%offloaded
  %s.update = ((f32[64,128], s32[8]), f32[8,128]) call-update(%s, %x, %y)
  %s.done = f32[8,128]{1,0:T(8,128)} call-done(%s.update)
  ROOT %copy.1 = f32[8,128]{1,0:T(8,128)} copy(%three)
}
"""
ARRAY = 8 * 128 * 4


def test_equal_computations_are_twins_whatever_their_names():
    assert Module(HLO).twin("two", ["three", "one"]) == ("one", True)


def test_other_computations_of_equal_shapes_are_a_weaker_match():
    assert Module(HLO).twin("three", ["one"]) == ("one", False)


def test_kernels_are_twins_only_with_the_same_code():
    module = Module(HLO)
    assert module.twin("k.2", ["k.1", "k.3"]) == ("k.1", True)
    assert module.twin("k.2", ["k.3"]) is None


def test_no_twin_for_what_is_not_in_the_module():
    assert Module(HLO).twin("elsewhere", ["one"]) is None
    assert Module("").twin("one", ["one"]) is None


def test_the_compilers_estimate_is_found():
    module = Module(HLO)
    assert module.instructions["two"].estimate == 1234
    assert module.instructions["one"].estimate == 0


def test_bytes_count_hbm_only():
    assert array_bytes("f32[8,128]{1,0:T(8,128)}") == ARRAY
    assert array_bytes("f32[8,128]{1,0:T(8,128)S(1)}") == 0
    assert array_bytes("(bf16[4,4], pred[3], s4[6], u32[]{:S(2)}, f8e4m3fn[10])") == 32 + 3 + 3 + 10
    assert array_bytes("f32[99999999999,99999999999]") <= 1 << 44
    assert Module(HLO).instructions["three"].bytes == 2 * ARRAY


def test_metadata_on_lines_of_its_own_belongs_to_the_instruction_before():
    text = """ENTRY %main (n: s32[2]) -> f32[8] {
  %n = s32[2]{0} parameter(0)
  %k.1 = f32[8]{0} custom-call(%n), custom_call_target="tpu_custom_call", frontend_attributes={a={
"block":"{\\"body\\": 1}"
}}, metadata={op_name="f"}, backend_config={"custom_call_config":{"body":"QUJD"}}
  ROOT %last = f32[8]{0} copy(%k.1)
}
"""
    module = Module(text)
    assert list(module.instructions) == ["n", "k.1", "last"]
    assert module.instructions["k.1"].kernel == kernel_hash("QUJD")
    assert module.instructions["last"].operands == ("f32[8]{0}",)


def test_entry_bytes_are_arguments_and_result():
    assert Module(HLO).entry_bytes == 2 * ARRAY


def test_sparse_core_work_is_counted_once_from_the_main_thread():
    assert Module(HLO).sparse_core_bytes() == 2 * ARRAY
    assert Module(HLO.replace("sparsecore", "other")).sparse_core_bytes() == 0


@given(st.lists(st.sampled_from(HLO.replace("\n", " \n ").split(" ")), max_size=80), st.text())
def test_scrambled_text_never_raises(words, text):
    for garbage in (" ".join(words), text, HLO[: len(text) * 7] + text):
        module = Module(garbage)
        module.twin("one", ["two", "three"])
        assert module.entry_bytes >= 0
        assert module.sparse_core_bytes() >= 0
