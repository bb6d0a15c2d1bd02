"""Emoji scenes: the embedded data set, drawn from a seed."""

from __future__ import annotations

from centerhash.data.scenes.scenes import CLASSES, Scene, render_scene, write_scenes

__all__ = ["CLASSES", "Scene", "render_scene", "write_scenes"]
