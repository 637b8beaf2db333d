"""What one conversation keeps in the engine's cache: numbers, known without an engine."""

from model.config import ModelConfig


def kda_spans(config: ModelConfig) -> list[list[int]]:
    """Layers (from 0) with KDA, in runs without another layer between them."""
    spans: list[list[int]] = [[]]
    for layer in range(config.num_hidden_layers):
        if config.is_full_attention(layer):
            spans.append([])
        else:
            spans[-1].append(layer)
    return [span for span in spans if span]


def state_shapes(
    config: ModelConfig, num_layers: int
) -> tuple[tuple[int, int, int], tuple[int, int, int, int]]:
    """Shapes of a page of states: convolution tails [N, width-1, 3*H*K], memories [N, H, K, V].

    Args:
        config: Shape of the model.
        num_layers: N, KDA layers that share the page.
    """
    heads, width = config.num_attention_heads, config.kda_head_dim
    tails = (num_layers, config.short_conv_kernel_size - 1, 3 * heads * width)
    return tails, (num_layers, heads, width, width)


def page_shapes(config: ModelConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the largest page of states in a model."""
    return state_shapes(config, max(len(span) for span in kda_spans(config)))
