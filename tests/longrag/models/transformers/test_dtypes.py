"""The dtype that weights get where nothing else is asked for."""

import pytest

from tests.tiny_models import byte_tokenizer, tiny_llama

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("transformers", reason="needs transformers")

from longrag.models import TransformersLanguageModel  # noqa: E402
from longrag.models.transformers import dtypes  # noqa: E402
from longrag.models.transformers.dtypes import is_native, native_dtype  # noqa: E402

TOKENIZER = byte_tokenizer(bos=True)
AVX2 = "processor\t: 0\nflags\t\t: fpu avx2 f16c\nbugs\t\t: none\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd asimdhp bf16\n"


def with_processor(monkeypatch, tmp_path, told):
    path = tmp_path / "cpuinfo"
    if told is not None:
        path.write_text(told)
    read = dtypes._processor_flags
    monkeypatch.setattr(dtypes, "_processor_flags", lambda: read(path))


@pytest.mark.parametrize(
    ("told", "half", "bfloat"),
    [
        (AVX2, False, False),
        (ARM, True, True),
        (AVX2.replace("avx2", "avx512f avx512_bf16"), False, True),
        (AVX2.replace("avx2", "amx_bf16"), False, True),
        (AVX2.replace("avx2", "avx512_fp16"), True, False),
        (AVX2.replace("avx2", "avx512f avx512_bf16_of_another_name"), False, False),
        ("processor\t: 0\n", False, False),
        (None, False, False),
    ],
)
def test_a_processor_computes_in_what_it_has_instructions_for(
    told, half, bfloat, monkeypatch, tmp_path
):
    with_processor(monkeypatch, tmp_path, told)
    assert is_native(torch.float16) is half
    assert is_native(torch.bfloat16, "cpu") is bfloat
    assert is_native(torch.float32)
    assert is_native(torch.float64)
    assert native_dtype() is (torch.bfloat16 if bfloat else torch.float32)


@pytest.mark.parametrize(
    ("told", "dtypes_"),
    [
        (AVX2, (torch.bfloat16, None, torch.float32)),
        (AVX2, (torch.float16, None, torch.float32)),
        (AVX2, (torch.float64, None, torch.float64)),
        (AVX2, (torch.bfloat16, torch.bfloat16, torch.bfloat16)),
        (ARM, (torch.bfloat16, None, torch.bfloat16)),
    ],
)
def test_a_model_is_loaded_in_a_dtype_that_the_machine_computes_in(
    told, dtypes_, monkeypatch, tmp_path
):
    saved, asked, expected = dtypes_
    with_processor(monkeypatch, tmp_path, told)
    tiny_llama(len(TOKENIZER)).to(saved).save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    loaded = TransformersLanguageModel.load(str(tmp_path / "model"), dtype=asked)
    assert loaded._network.model.dtype is expected
