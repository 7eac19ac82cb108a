// In the order of kinds that the server names; distinct in lightness as well as in hue.

export const KIND_COLORS = ["#4d7cf3", "#23a07a", "#a9b2c0", "#8d99ab", "#7388a8", "#3f8ecb", "#8a6fe0", "#b57edc", "#5fb0b7", "#e8863a", "#d5a615", "#cf4a5e", "#e0808d", "#6b7a90", "#b957c9", "#9a8f7a"];
