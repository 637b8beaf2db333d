"""The architecture a second time: one token after the other, in NumPy, float64.

Nothing here is shared with `model` or `kernels`, and nothing is fast. Written from the published
equations (Kimi K3 report, arXiv 2607.24653, section 2; attention residuals: arXiv 2603.15031).
Weights come as a dictionary of arrays by published name, below the prefix of the block.
"""

import numpy as np


def weights_of(module, prefix=""):
    """Parameters and buffers of a torch module as float64 arrays."""
    return {
        name.removeprefix(prefix): tensor.detach().double().numpy()
        for name, tensor in module.state_dict().items()
        if name.startswith(prefix)
    }


def below(weights, prefix):
    """The weights whose names begin with `prefix`, without it."""
    return {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}


def sigmoid(x):
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x) + eps) * weight


def situ_glu(gate, up, beta, linear_beta):
    bounded = beta * np.tanh(gate / beta) * sigmoid(gate)
    return bounded * linear_beta * np.tanh(up / linear_beta)


def convolve(sequence, filters):
    """Causal depthwise convolution: `filters` [C, I], the last tap meets the present token."""
    num_taps = filters.shape[1]
    rows = []
    for t in range(len(sequence)):
        row = np.zeros(sequence.shape[1])
        for tap in range(num_taps):
            source = t - (num_taps - 1) + tap
            if source >= 0:
                row += filters[:, tap] * sequence[source]
        rows.append(row)
    return np.stack(rows)


def decay(w, x_t, config):
    """Log-decays [H, K] of one token: the bias joins the logits before exp(A_log) scales them."""
    num_heads = config.num_attention_heads
    logits = w["f_b_proj.weight"] @ (w["f_a_proj.weight"] @ x_t) + w["dt_bias"]
    rate = np.exp(w["A_log"])
    g = np.zeros((num_heads, config.kda_head_dim))
    for head, z in enumerate(logits.reshape(num_heads, -1)):
        g[head] = config.gate_lower_bound * sigmoid(rate[head] * z)
    return g


def kda_layer(w, x, config):
    """Kimi Delta Attention over one sequence x [T, D]."""
    num_heads, width = config.num_attention_heads, config.kda_head_dim
    activated = {}
    for name in "qkv":
        convolved = convolve(x @ w[f"{name}_proj.weight"].T, w[f"{name}_conv1d.weight"][:, 0])
        activated[name] = (convolved * sigmoid(convolved)).reshape(len(x), num_heads, width)
    memory = np.zeros((num_heads, width, width))
    outputs = []
    for t, x_t in enumerate(x):
        g = decay(w, x_t, config)
        beta = sigmoid(w["b_proj.weight"] @ x_t)
        gate = sigmoid(w["g_proj.weight"] @ x_t).reshape(num_heads, width)
        row = []
        for head in range(num_heads):
            q, k, v = (activated[name][t, head] for name in "qkv")
            q = q / np.sqrt(q @ q + 1e-6)
            k = k / np.sqrt(k @ k + 1e-6)
            state = np.exp(g[head])[:, None] * memory[head]
            state = state + np.outer(k, beta[head] * (v - state.T @ k))
            memory[head] = state
            read = state.T @ q / np.sqrt(width)
            row.append(gate[head] * rms_norm(read, w["o_norm.weight"], config.rms_norm_eps))
        outputs.append(w["o_proj.weight"] @ np.concatenate(row))
    return np.stack(outputs)


def mla_layer(w, x, config):
    """Gated latent attention over one sequence x [T, D], with keys and values per head."""
    num_heads, eps = config.num_attention_heads, config.rms_norm_eps
    nope, shared, rank = config.qk_nope_head_dim, config.qk_rope_head_dim, config.kv_lora_rank
    up = w["kv_b_proj.weight"].reshape(num_heads, nope + config.v_head_dim, rank)
    keys, values, outputs = [], [], []
    for x_t in x:
        compressed = w["kv_a_proj_with_mqa.weight"] @ x_t
        latent = rms_norm(compressed[:rank], w["kv_a_layernorm.weight"], eps)
        keys.append([np.concatenate([m[:nope] @ latent, compressed[rank:]]) for m in up])
        values.append([m[nope:] @ latent for m in up])
        query = w["q_b_proj.weight"] @ rms_norm(
            w["q_a_proj.weight"] @ x_t, w["q_a_layernorm.weight"], eps
        )
        row = []
        for head, q in enumerate(query.reshape(num_heads, nope + shared)):
            scores = np.array([q @ key[head] for key in keys]) / np.sqrt(nope + shared)
            shares = np.exp(scores - scores.max())
            shares /= shares.sum()
            row.append(sum(p * value[head] for p, value in zip(shares, values, strict=True)))
        gate = sigmoid(w["g_proj.weight"] @ x_t)
        outputs.append(w["o_proj.weight"] @ (gate * np.concatenate(row)))
    return np.stack(outputs)


def feed_forward(w, x_t, config):
    """A dense layer, or the shared experts, on one token."""
    betas = config.activation_situ_beta, config.activation_situ_linear_beta
    return w["down_proj.weight"] @ situ_glu(
        w["gate_proj.weight"] @ x_t, w["up_proj.weight"] @ x_t, *betas
    )


def moe_layer(w, x_t, config):
    """Stable latent experts on one token."""
    betas = config.activation_situ_beta, config.activation_situ_linear_beta
    scores = sigmoid(w["gate.weight"] @ x_t)
    preference = scores + w["gate.e_score_correction_bias"]
    chosen = np.argsort(-preference)[: config.num_experts_per_token]
    latent = w["routed_expert_down_proj.weight"] @ x_t
    routed = np.zeros(config.routed_expert_hidden_size)
    for e in chosen:
        inner = situ_glu(
            w[f"experts.{e}.w1.weight"] @ latent, w[f"experts.{e}.w3.weight"] @ latent, *betas
        )
        share = scores[e] / scores[chosen].sum()
        routed += share * (w[f"experts.{e}.w2.weight"] @ inner)
    normed = rms_norm(routed, w["routed_expert_norm.weight"], config.rms_norm_eps)
    shared = feed_forward(below(w, "shared_experts."), x_t, config)
    return w["routed_expert_up_proj.weight"] @ normed + shared


def mix(candidates, query, norm, eps):
    """Softmax mixture over depth of one token's candidates."""
    scores = np.array([query @ rms_norm(c, norm, eps) for c in candidates])
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    return sum(p * c for p, c in zip(shares, candidates, strict=True))


def decoder(w, token_ids, config):
    """Final hidden states [T, D] of one sequence, and how many sums were finished."""
    eps = config.rms_norm_eps
    finished, running = [], w["embed_tokens.weight"][token_ids]

    def read(norm, proj):
        return np.stack(
            [
                mix([c[t] for c in [*finished, running]], w[proj][0], w[norm], eps)
                for t in range(len(token_ids))
            ]
        )

    for layer in range(config.num_hidden_layers):
        name = f"layers.{layer}."
        x = read(f"{name}self_attention_res_norm.weight", f"{name}self_attention_res_proj.weight")
        x = np.stack([rms_norm(row, w[f"{name}input_layernorm.weight"], eps) for row in x])
        mixing = mla_layer if layer + 1 in config.full_attn_layers else kda_layer
        attended = mixing(below(w, f"{name}self_attn."), x, config)
        if layer % config.attn_res_block_size == 0:
            finished, running = [*finished, running], attended
        else:
            running = running + attended
        x = read(f"{name}mlp_res_norm.weight", f"{name}mlp_res_proj.weight")
        x = np.stack([rms_norm(row, w[f"{name}post_attention_layernorm.weight"], eps) for row in x])
        if layer < config.first_k_dense_replace:
            forward, inner = feed_forward, below(w, f"{name}mlp.")
        else:
            forward, inner = moe_layer, below(w, f"{name}block_sparse_moe.")
        running = running + np.stack([forward(inner, row, config) for row in x])
    x = read("output_attn_res_norm.weight", "output_attn_res_proj.weight")
    hidden = np.stack([rms_norm(row, w["norm.weight"], eps) for row in x])
    return hidden, len(finished)
