import copy
import json
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import (
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxbench_env.spaces import SAMPLE_LENGTH, SourceText

LENGTH = 40
any_text = st.text(alphabet=st.characters(categories=None), max_size=LENGTH)
ODD = ["", "\0", "a\0b\0", "\ud800 lone \udfff", "🧮" * LENGTH, "é\r\n\t\x1b", "x" * LENGTH]


class Echo(gym.Env):
    """Answers with the last text, its length, and the text reversed inside a nested space."""

    def __init__(self, length=LENGTH, examples=None):
        self.action_space = SourceText(length, examples=examples)
        self.observation_space = Dict(
            {
                "echo": SourceText(length),
                "size": Box(0, length, (1,), np.int64),
                "nested": Dict({"reversed": SourceText(length), "turn": Discrete(100)}),
                "pair": Tuple((SourceText(length), Discrete(2))),
            }
        )

    def _observe(self, text):
        return {
            "echo": text,
            "size": np.array([len(text)], np.int64),
            "nested": {"reversed": text[::-1], "turn": np.int64(self.turn)},
            "pair": (text.upper()[: self.observation_space["echo"].max_length], np.int64(1)),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return self._observe(f"seed {seed}"), {}

    def step(self, action):
        self.turn += 1
        return self._observe(action), float(len(action)), False, False, {"text": action}


class Short(Echo):
    def __init__(self):
        super().__init__(length=LENGTH // 2)


@given(any_text)
def test_any_text_within_the_length_is_a_member(text):
    assert text in SourceText(LENGTH)
    assert (text in SourceText(10)) == (len(text) <= 10)


@pytest.mark.parametrize("thing", [None, 3, b"x", ["x"], np.array("x")])
def test_only_strings_are_members(thing):
    assert thing not in SourceText(LENGTH)


@pytest.mark.parametrize("text", ODD)
def test_odd_texts_are_members_too(text):
    assert text in SourceText(LENGTH)


@given(st.integers(0, 1000), st.integers(0, 2**31))
def test_samples_are_members_and_printable(length, seed):
    space = SourceText(length, seed=seed)
    text = space.sample()
    assert text in space and len(text) <= SAMPLE_LENGTH
    assert text.isprintable()


def test_samples_are_reproducible_and_differ():
    one, other = SourceText(LENGTH, seed=1), SourceText(LENGTH)
    other.seed(1)
    texts = [one.sample() for _ in range(20)]
    assert texts == [other.sample() for _ in range(20)]
    assert len(set(texts)) > 10
    assert {len(text) for text in texts} != {LENGTH}


def test_samples_come_from_the_examples_where_there_are_some():
    space = SourceText(LENGTH, examples=ODD, seed=0)
    assert {space.sample() for _ in range(300)} == set(ODD)


def test_a_mask_chooses_among_the_examples():
    space = SourceText(LENGTH, examples=["a", "b", "c"], seed=0)
    drawn = {space.sample(mask=np.array([1, 0, 1], np.int8)) for _ in range(50)}
    assert drawn == {"a", "c"}
    drawn = {space.sample(probability=np.array([0.0, 1.0, 0.0])) for _ in range(50)}
    assert drawn == {"b"}


@pytest.mark.parametrize(
    "mask",
    [
        np.array([1, 0], np.int8),
        np.array([1, 0, 2], np.int8),
        np.array([0, 0, 0], np.int8),
        np.array([1, 0, 1], np.int64),
        [1, 0, 1],
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask):
    with pytest.raises(ValueError, match="mask"):
        SourceText(LENGTH, examples=["a", "b", "c"]).sample(mask=mask)


def test_masks_are_refused_where_they_mean_nothing():
    mask, probability = np.ones(1, np.int8), np.ones(1)
    with pytest.raises(ValueError, match="has none"):
        SourceText(LENGTH).sample(mask=mask)
    with pytest.raises(ValueError, match="only one of"):
        SourceText(LENGTH, examples=["a"]).sample(mask=mask, probability=probability)
    with pytest.raises(ValueError, match="sum 1"):
        SourceText(LENGTH, examples=["a"]).sample(probability=probability / 2)


def test_what_cannot_be_a_space_is_refused():
    with pytest.raises(ValueError, match="0 or more, not -1"):
        SourceText(-1)
    with pytest.raises(ValueError, match="has no texts"):
        SourceText(5, examples=[])
    with pytest.raises(ValueError, match="example 1 is no string of at most 5"):
        SourceText(5, examples=["short", "too long"])


def test_spaces_are_equal_by_their_length():
    assert SourceText(5) == SourceText(5, examples=["a"], seed=3)
    assert SourceText(5) != SourceText(6)
    assert SourceText(5) != gym.spaces.Text(5)
    assert repr(SourceText(5)) == "SourceText(5)"


def test_a_space_survives_pickling_and_copying():
    space = SourceText(LENGTH, examples=ODD, seed=4)
    for twin in (pickle.loads(pickle.dumps(space)), copy.deepcopy(space)):
        assert twin == space and twin.examples == space.examples
    twin = copy.deepcopy(space)
    assert [twin.sample() for _ in range(9)] == [space.sample() for _ in range(9)]


@given(st.lists(any_text))
def test_texts_survive_json(texts):
    space = SourceText(LENGTH)
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(texts)))) == texts


def test_it_is_not_flattened_and_flattens_to_itself_inside_others():
    space = Dict({"a": SourceText(5), "b": Box(0, 1, (2, 2))})
    assert not SourceText(5).is_np_flattenable
    flat = gym.spaces.flatten_space(space)
    assert flat["a"] == SourceText(5) and flat["b"].shape == (4,)
    point = {"a": "x", "b": np.zeros((2, 2), np.float32)}
    assert gym.spaces.flatten(space, point)["a"] == "x"
    assert gym.spaces.unflatten(space, gym.spaces.flatten(space, point))["a"] == "x"
    with pytest.raises(ValueError, match="cannot be flattened"):
        gym.spaces.flatdim(space)


def test_a_batch_is_a_tuple_of_texts():
    space = SourceText(LENGTH, seed=0)
    batch = batch_space(space, 3)
    texts = batch.sample()
    assert batch == Tuple([space] * 3) and texts in batch
    assert len(set(texts)) == 3
    assert list(iterate(batch, texts)) == list(texts)
    assert concatenate(space, list(texts), create_empty_array(space, 3)) == texts
    assert create_empty_array(space, 3) in batch


@settings(max_examples=50)
@given(st.lists(any_text, min_size=3, max_size=3), st.lists(any_text, min_size=3, max_size=3))
def test_shared_memory_keeps_every_text_and_follows_it(first, then):
    space = SourceText(LENGTH)
    memory = create_shared_memory(space, n=3)
    texts = read_from_shared_memory(space, memory, n=3)
    assert list(texts) == ["", "", ""]
    for round_ in (first, then):
        for i, text in enumerate(round_):
            write_to_shared_memory(space, i, text, memory)
        assert list(texts) == round_
        assert copy.deepcopy(texts) == tuple(round_)


def test_shared_memory_has_room_for_the_longest_text_and_no_more():
    space = SourceText(LENGTH)
    memory = create_shared_memory(space, n=2)
    write_to_shared_memory(space, 1, "🧮" * LENGTH, memory)
    assert list(read_from_shared_memory(space, memory, n=2)) == ["", "🧮" * LENGTH]
    assert len(memory) == 2 * (4 + 4 * LENGTH)
    with pytest.raises(ValueError, match="no member of SourceText"):
        write_to_shared_memory(space, 0, "x" * (LENGTH + 1), memory)
    assert list(read_from_shared_memory(space, memory, n=2)) == ["", "🧮" * LENGTH]


@pytest.mark.filterwarnings("ignore:.*render:UserWarning")
@pytest.mark.parametrize("examples", [None, ODD])
def test_gymnasium_finds_nothing_wrong_with_an_environment_of_texts(examples):
    check_env(Echo(examples=examples), skip_render_check=True)


def _vector(kind):
    if kind == "sync":
        return SyncVectorEnv([Echo] * 2)
    return AsyncVectorEnv([Echo] * 2, shared_memory=kind == "shared", context="fork")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
@pytest.mark.parametrize("kind", ["sync", "shared", "pipes"])
def test_vector_environments_carry_texts_both_ways(kind):
    envs = _vector(kind)
    try:
        observation, _ = envs.reset(seed=5)
        assert observation["echo"] == ("seed 5", "seed 6")
        earlier = observation
        for texts in [*zip(ODD, reversed(ODD), strict=True)]:
            for actions in (texts, list(texts)):
                observation, rewards, *_, infos = envs.step(actions)
            assert observation["echo"] == texts
            assert observation["nested"]["reversed"] == tuple(text[::-1] for text in texts)
            assert observation["pair"][0] == tuple(text.upper()[:LENGTH] for text in texts)
            assert observation["size"].tolist() == [[len(text)] for text in texts]
            assert rewards.tolist() == [len(text) for text in texts]
            assert tuple(infos["text"]) == texts
            assert observation in envs.observation_space
        assert earlier["echo"] == ("seed 5", "seed 6")  # a copy, not the memory itself
        observation, *_ = envs.step(envs.action_space.sample())
        assert observation in envs.observation_space
    finally:
        envs.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
def test_without_copies_the_observation_follows_the_memory():
    envs = AsyncVectorEnv([Echo] * 2, copy=False, context="fork")
    try:
        observation, _ = envs.reset(seed=5)
        assert list(observation["echo"]) == ["seed 5", "seed 6"]
        envs.step(("a", "b"))
        assert list(observation["echo"]) == ["a", "b"]
        assert observation["echo"][0:1] == ("a",)
    finally:
        envs.close()


def test_environments_of_different_lengths_are_told_apart():
    with pytest.raises(RuntimeError, match="not equivalent"):
        SyncVectorEnv([Echo, Short])
    with pytest.raises(RuntimeError, match="common shape"):
        SyncVectorEnv([Echo, Short], observation_mode="different")
    envs = SyncVectorEnv([Echo, Echo], observation_mode="different")
    observation, _ = envs.reset(seed=1)
    assert observation["echo"] == ("seed 1", "seed 2")
