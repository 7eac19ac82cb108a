"""The dashboard: Gradio pages around plain browser modules, fed by plain JSON routes."""

from ui.app import build

__all__ = ["build"]
