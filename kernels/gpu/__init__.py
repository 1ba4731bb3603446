"""The ops of kernels.reference as Triton kernels. Importing this package's modules imports Triton.

With TRITON_INTERPRET=1 in the environment before the first import they run on CPU tensors, slowly, for tests.
"""

import os

# Products and sums fused into one instruction, as ever: from Triton 3.10 on that has to be asked for.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
