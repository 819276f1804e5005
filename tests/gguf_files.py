"""Writes tiny Llamas of transformers as GGUF files, for llama.cpp to read."""

import json

import numpy as np


def write_gguf(path, model, tokenizer, *, add_bos=True):
    """Write a Llama and its byte-level tokenizer, in float32."""
    size = model.config.vocab_size
    write(path, model, lambda writer: add_tokenizer(writer, tokenizer, size, add_bos))


def write(path, model, add_tokens):
    import gguf

    config = model.config
    heads, pairs = config.num_attention_heads, config.num_key_value_heads
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(pairs)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    add_tokens(writer)
    for name, weights in model.state_dict().items():
        array = weights.float().numpy()
        if "q_proj" in name:
            array = permuted(array, heads)
        elif "k_proj" in name:
            array = permuted(array, pairs)
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer, tokenizer, size, add_bos):
    import gguf

    special = set(tokenizer.all_special_tokens)
    tokens = [""] * size
    for token, number in tokenizer.get_vocab().items():
        tokens[number] = token
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.CONTROL if it in special else kinds.NORMAL for it in tokens])
    writer.add_token_merges([it if isinstance(it, str) else " ".join(it) for it in merges])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(add_bos)


def permuted(weights, heads):
    """Reorder rows as llama.cpp wants them, which turns neighbours and not halves."""
    rows, columns = weights.shape
    return weights.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(
        rows, columns
    )  # fmt: skip


def gguf_name(name):
    parts = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers": "blk",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    return renamed(name, parts)


def renamed(name, parts):
    for theirs, ours in parts.items():
        name = name.replace(theirs, ours)
    return name


def write_mamba(path, model, tokenizer):
    """Write a Mamba, which cannot go back in a text."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(str(path), "mamba")
    writer.add_context_length(512)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_inner_size(config.intermediate_size)
    writer.add_ssm_state_size(config.state_size)
    writer.add_ssm_time_step_rank(config.time_step_rank)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_vocab_size(config.vocab_size)
    add_tokenizer(writer, tokenizer, config.vocab_size, True)
    names = {
        "backbone.embeddings": "token_embd",
        "backbone.norm_f": "output_norm",
        "lm_head": "output",
        "backbone.layers": "blk",
        ".norm.weight": ".attn_norm.weight",
        "mixer.A_log": "ssm_a",
        "mixer.D": "ssm_d",
        "mixer.conv1d": "ssm_conv1d",
        "mixer.in_proj": "ssm_in",
        "mixer.x_proj": "ssm_x",
        "mixer.dt_proj": "ssm_dt",
        "mixer.out_proj": "ssm_out",
    }
    for name, weights in model.state_dict().items():
        array = weights.float().numpy()
        if name.endswith("A_log"):
            array = -np.exp(array)
        writer.add_tensor(renamed(name, names), np.ascontiguousarray(array.squeeze()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_sentencepiece(path, words):
    """Write a tiny Llama of random weights with a SentencePiece tokenizer of these words."""
    import gguf

    from tests.tiny_models import tiny_llama

    kinds = gguf.TokenType
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    model = tiny_llama(len(tokens))
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * 256]
    types += [kinds.NORMAL] * len(words)

    def add(writer):
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * 259 + [float(len(word)) for word in words])
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_space_prefix(True)

    write(path, model, add)
