"""What is learnt: samples, rewards, and the environments that ship."""
