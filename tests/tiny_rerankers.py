"""Rerankers with random weights and tokenizers made from a few words, for tests of the formulas."""

import re
from functools import cache

from tests.tiny_models import byte_tokenizer, needs_torch

WORDS = re.findall(
    r"\w+",
    """the mill grinds rye miller at and baker buys it ada lind directed north wind burned down in
    who where is a church river of query document relevant true false what definition""",
)


def settings(**more):
    # The usual 0.02 makes all attention even, so that what is attended to hardly matters.
    return {"initializer_range": 0.5, **more}


@cache
def t5_tokenizer():
    """A unigram tokenizer as T5's: "▁" before words, </s> after every text."""
    needs_torch()
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [*WORDS, "Query", "Document", "Relevant", "The"]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -4.0)]
    pieces += [(f"▁{word}", -5.0) for word in dict.fromkeys(words)]
    letters = ":.,?0123456789<>/[]磨坊黑麦年烧毁了。在哪里" + "abcdefghijklmnopqrstuvwxyz"
    letters += letters[-26:].upper()
    pieces += [(letter, -7.0) for letter in letters]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )


@cache
def bert_tokenizer():
    """A WordPiece tokenizer as BERT's: [CLS] text [SEP], lower case, Chinese by characters."""
    needs_torch()
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    tokens = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", *dict.fromkeys(WORDS)]
    tokens += [one for one in letters if one not in tokens] + [f"##{one}" for one in letters]
    tokens += list(".,?!:<>[]/磨坊黑麦年烧毁了。在哪里")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 3), ("[SEP]", 4)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def seeded(make, seed=0):
    needs_torch()
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


@cache
def tiny_t5(tied=True):
    """A T5 of two layers; its embeddings are the head's where ``tied``."""
    needs_torch()
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=len(t5_tokenizer()) + 5,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        tie_word_embeddings=tied,
        initializer_factor=2.0,
    )
    return seeded(lambda: T5ForConditionalGeneration(config))


def bert(kind, **more):
    """A BERT of two layers with the head that ``kind`` names."""
    needs_torch()
    import transformers

    config = transformers.BertConfig(
        vocab_size=len(bert_tokenizer()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        **settings(**more),
    )
    return seeded(lambda: getattr(transformers, kind)(config))


@cache
def cross_encoder(num_labels=1):
    return bert("BertForSequenceClassification", num_labels=num_labels)


@cache
def tilde():
    model = bert("BertForTokenClassification", num_labels=1)
    # Most weights positive, so that relu shows and does not hide everything.
    model.classifier.bias.data.fill_(1.0)
    return model


@cache
def tilde_v1():
    return bert("BertForMaskedLM")


@cache
def rank_llama(**more):
    """A Llama of two layers with a head of one number, and no padding token set."""
    needs_torch()
    from transformers import LlamaConfig, LlamaForSequenceClassification

    config = LlamaConfig(
        vocab_size=len(byte_tokenizer()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        num_labels=1,
        pad_token_id=None,
        **settings(**more),
    )
    return seeded(lambda: LlamaForSequenceClassification(config))
