"""Networks: images to features (backbones, engines, the encoder), features to logits (heads)."""
