"""PyTorch with its compiler, which transformers imports: import it before torch_model."""

import sys
import types

sys.modules["no_compiler"] = types.ModuleType("no_compiler")
