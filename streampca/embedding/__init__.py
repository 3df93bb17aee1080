"""Pictures of rows by their neighbours: filter, components, then UMAP, t-SNE or PaCMAP.

```sh
pip install 'streampca[umap]'   # or [tsne], [pacmap]; [embed] has all three
streampca embed x.zarr --filter variance:2000 -k 50 --method umap -o embedding.zarr --plot map.html
streampca embed x.bed --filter maf:0.01 ld:0.2 --scale hwe -k 20 -o embedding.zarr
```

```python
found = streampca.embed("x.zarr", filter="variance:2000", n_components=50, method="umap")
found.coordinates  # (n, 2)
print(found)  # what the filters left, and what the picture keeps of the neighbourhoods
streampca.plots.embedding(found, labels=labels)
found.transform("new.zarr")  # other rows in the same picture
```

The layouts are those of umap-learn, openTSNE and PaCMAP, on one thread, so that a seed gives the
same picture. They hold their rows in memory: of many rows a sample is laid out, and the others are
placed among these landmarks. `plan_embedding` tells the memory beforehand; `--memory-limit` covers
the layout too.

A picture of this kind shows who is near whom, and no more: its axes, the sizes of its clusters and
the distances between them have no meaning. How many of the neighbours it keeps is printed with it.
"""

from streampca.embedding.embed import Embedding, embed, plan_embedding
from streampca.embedding.plan import EmbeddingPlan
from streampca.embedding.quality import Quality, quality

__all__ = ["Embedding", "EmbeddingPlan", "Quality", "embed", "plan_embedding", "quality"]
