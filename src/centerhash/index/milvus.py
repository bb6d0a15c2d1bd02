"""Codes, labels and attributes in Milvus, a server or a cluster, for more than one machine."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, check_packed, pack
from centerhash.core.checks import whole_number
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.extras import require
from centerhash.index import query as queries
from centerhash.index.items import AddResult, Facts, Result, Results, check_ids, check_labels
from centerhash.model.base import Model
from centerhash.model.loading import load

_ADDRESS = re.compile(r"milvus:((?:https?|tcp|grpc)://[^#]+)#([A-Za-z_][A-Za-z0-9_]{0,254})")
_TIMEOUT_SECONDS, _ITEMS_PER_CALL = 60.0, 4_096
# Milvus limits the results of a search; ids and labels have at most so many percent-encoded bytes.
_MAX_RESULTS, _MAX_TEXT_BYTES, _MAX_LABELS_PER_ITEM = 16_384, 2_048, 1_024


class MilvusIndex(AbstractContextManager["MilvusIndex"]):
    """An index in a collection of a Milvus server, at "milvus:http://HOST:PORT#COLLECTION"; use `create` or `open`.

        with MilvusIndex.create("milvus:http://127.0.0.1:19530#shop", model, attributes={"price": float}) as index:
            index.add(embeddings, ids=ids, labels=labels, attributes={"price": prices})
            index.search(embedding, k=10, having="shoe", where={"price": (0, 50)})

    Results are exact, by a BIN_FLAT index of the semantic codes; items at the same distance come in any order. Milvus
    does not enforce unique ids, so only one process may add items at a time.
    """

    def __init__(self, address: str, model: Model | str | None) -> None:
        parts = _ADDRESS.fullmatch(address)
        if parts is None:
            raise ConfigError(f"an index in Milvus is milvus:http://HOST:PORT#COLLECTION, got '{address}'.")
        # The client's errors are raised as DataError.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        self.collection, self._server = parts[2], re.sub(r"//[^/]*@", "//", parts[1])
        self._model = load(model) if isinstance(model, str) else model
        self.bits, self.attributes = 0, dict[str, type]()
        with self._explained_errors():
            self._client = require("pymilvus").MilvusClient(
                parts[1], timeout=_TIMEOUT_SECONDS, dedicated=True
            )

    @classmethod
    def create(
        cls,
        address: str,
        model: Model | str | None = None,
        *,
        bits: int | None = None,
        attributes: Mapping[str, type] | None = None,
    ) -> Self:
        """Create an empty collection for the codes of a model, or of `bits` bits, a multiple of 8, and open it."""
        index = cls(address, model)
        length = bits if index._model is None else index._model.bits
        if length is None or length < 8 or length % 8:
            raise ConfigError(f"Milvus stores codes whose bits are a multiple of 8, got {length}.")
        if index._call("has_collection"):
            raise DataError(f"'{index._server}' has a collection '{index.collection}' already: open it.")
        kinds = {name: "number" if kind is float else "text" for name, kind in (attributes or {}).items()}
        digest = None if index._model is None else index._model.digest
        facts = json.dumps({"bits": length, "attributes": kinds, "model": digest})
        client, types = require("pymilvus").MilvusClient, require("pymilvus").DataType
        schema, codes = client.create_schema(auto_id=False, description=facts), client.prepare_index_params()
        schema.add_field("id", types.VARCHAR, is_primary=True, max_length=_MAX_TEXT_BYTES)
        schema.add_field("code", types.BINARY_VECTOR, dim=length)
        texts = {"element_type": types.VARCHAR, "max_length": _MAX_TEXT_BYTES}
        schema.add_field("labels", types.ARRAY, max_capacity=_MAX_LABELS_PER_ITEM, **texts)
        schema.add_field("attributes", types.JSON)
        codes.add_index("code", index_type="BIN_FLAT", metric_type="HAMMING")
        index._call("create_collection", schema=schema, index_params=codes, consistency_level="Strong")
        index.close()
        return cls.open(address, index._model)

    @classmethod
    def open(cls, address: str, model: Model | str | None = None) -> Self:
        """Open a collection of `create`; queries by embeddings and labels need its model."""
        index = cls(address, model)
        if not index._call("has_collection"):
            raise DataError(f"no collection '{index.collection}' at '{index._server}': create it first.")
        facts = json.loads(index._call("describe_collection")["description"])
        if index._model is not None and index._model.digest != facts["model"]:
            raise InputError(f"the collection '{index.collection}' has codes of another model.")
        index.bits, kinds = facts["bits"], {"number": float, "text": str}
        index.attributes = {name: kinds[kind] for name, kind in facts["attributes"].items()}
        index._call("load_collection")
        return index

    @property
    def model(self) -> Model:
        """The model of the codes."""
        if self._model is None:
            raise ConfigError("embeddings and labels need the model of the codes: open it with `model=`.")
        return self._model

    def add(
        self,
        embeddings: NDArray[Any] | None = None,
        *,
        codes: Packed | None = None,
        ids: Sequence[object],
        labels: Sequence[Sequence[str]] | None = None,
        attributes: Mapping[str, Sequence[Any]] | None = None,
        replace: bool = False,
    ) -> AddResult:
        """Add embeddings (N, D) or packed codes (N, K/8); items of stored ids are skipped, or replaced with `replace`."""
        if (embeddings is None) == (codes is None):
            raise InputError("add either embeddings or codes, one of the two.")
        if embeddings is not None:
            features = np.asarray(embeddings)
            codes = pack(self.model.encode_features(features))
            labels = self.model.label_names(features) if labels is None else labels
        values = attributes or {}
        if not values.keys() <= self.attributes.keys():
            raise InputError(f"the attributes of this index are {list(self.attributes)}, got {list(values)}.")
        packed = check_packed(np.asarray(codes), self.bits)
        columns: list[Any] = [packed, check_ids(ids), labels or [()] * len(packed), *values.values()]
        if len({*map(len, columns)}) > 1:
            raise InputError(f"numbers of codes, ids, labels, attributes differ: {list(map(len, columns))}.")
        known = 0
        for start in range(0, len(packed), _ITEMS_PER_CALL):
            page = list(zip(*(column[start : start + _ITEMS_PER_CALL] for column in columns), strict=True))
            condition = f"id in {json.dumps([_text(row[1]) for row in page])}"
            stored = {row["id"] for row in self._call("query", filter=condition, output_fields=["id"])}
            known += len(stored)
            if rows := [_row(values, *row) for row in page if replace or _text(row[1]) not in stored]:
                self._call("upsert", data=rows)
        return AddResult(len(packed) - known, known)

    def search(
        self,
        query: NDArray[Any] | None = None,
        *,
        code: Any = None,
        id: str | None = None,
        labels: queries.LabelQuery | None = None,
        k: int = 10,
        within: int | None = None,
        having: str | Sequence[str] = (),
        without: str | Sequence[str] = (),
        where: Mapping[str, Any] | None = None,
    ) -> Results:
        """Return the `k` items nearest to an embedding (D,), a code, an item by its id, or labels, as `Index.search`.

        Labels are represented by the code between their centers. The server evaluates the filters.
        """
        whole_number(k, "k", 1)
        if sum(value is not None for value in (query, code, id, labels)) != 1:
            raise InputError("search by exactly one of an embedding, code, id or labels.")
        encoded = self._query(query, code, id, labels)
        hits = self._call(
            "search",
            data=[pack(encoded.code[None])[0].tobytes()],
            filter=" and ".join(self._conditions(having, without, where, encoded.ids)),
            limit=min(k, _MAX_RESULTS),
            output_fields=["labels", "attributes"],
            search_params={"metric_type": "HAMMING"},
        )
        rows = [hit for hit in hits[0] if within is None or hit["distance"] <= within]
        return Results(list(map(_result, rows)), encoded.explained, encoded.code, len(self))

    def _query(self, query: Any, code: Any, id: str | None, labels: Any) -> queries.Query:
        if query is not None:
            return queries.query_by_embedding(self.model, query)
        if labels is not None:
            weights = queries.read_labels(labels, self.model.classes)
            column = np.array([weights.get(name, 0.0) for name in self.model.classes])
            return queries.Query(queries.label_code(np.asarray(self.model.centers), column))
        if id is not None:
            rows = self._call("query", filter=f'id == "{_text(id)}"', output_fields=["code"])
            if not rows:
                raise InputError(f"there is no item '{id}' in the collection '{self.collection}'.")
            code = np.frombuffer(rows[0]["code"][0], np.uint8)
        encoded = queries.query_by_code(Facts(self.bits), code)
        return queries.Query(encoded.code, ids=() if id is None else (id,))

    def _conditions(self, having: Any, without: Any, where: Any, excluded: Sequence[str]) -> Iterator[str]:
        """Yield the conditions of a filter as expressions of Milvus, in which texts are percent-encoded."""
        filters = queries.parse_filter(self.attributes, having, without, where)
        yield from (f'ARRAY_CONTAINS(labels, "{_text(label)}")' for label in filters.having)
        yield from (f'not ARRAY_CONTAINS(labels, "{_text(label)}")' for label in filters.without)
        yield from (f'id != "{_text(id)}"' for id in excluded)
        for name, values in filters.where.items():
            field = f"attributes[{json.dumps(_text(name))}]"
            if self.attributes[name] is str:
                yield f"{field} in {json.dumps([_text(str(value)) for value in values])}"
                continue
            low, high = np.clip(values, -1e308, 1e308).tolist()
            yield f"{field} >= {low!r} and {field} <= {high!r}"

    def __len__(self) -> int:
        return int(self._call("query", filter="", output_fields=["count(*)"])[0]["count(*)"])

    def _call(self, method: str, **options: Any) -> Any:
        with self._explained_errors():
            return getattr(self._client, method)(self.collection, timeout=_TIMEOUT_SECONDS, **options)

    @contextmanager
    def _explained_errors(self) -> Iterator[None]:
        """Turn errors of the client into DataError."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            errors = require("pymilvus.exceptions").MilvusException, require("grpc").RpcError
        try:
            yield
        except errors as error:
            reason = (str(getattr(error, "message", error)).strip().splitlines() or ["no reason given"])[0]
            message = f"Milvus at '{self._server}' failed: {reason[:300]}. Is the server running?"
            raise DataError(message) from error

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __exit__(self, *exception: object) -> None:
        self.close()


def _text(text: str) -> str:
    """Percent-encode a text, so that it needs no quoting in an expression."""
    return quote(text, safe=" /")


def _row(names: Mapping[str, Any], code: Packed, id: str, labels: Sequence[str], *values: Any) -> Any:
    """Return an item as Milvus stores it, without missing attributes."""
    texts = [_text(value) if isinstance(value, str) else value for value in values]
    attributes = {_text(name): value for name, value in zip(names, texts, strict=True) if value is not None}
    carried = [_text(label) for label in check_labels(labels)]
    return {"id": _text(id), "code": code.tobytes(), "labels": carried, "attributes": attributes}


def _result(hit: Mapping[str, Any]) -> Result:
    labels, stored = tuple(map(unquote, hit["entity"]["labels"])), hit["entity"]["attributes"]
    values = {name: unquote(value) if isinstance(value, str) else value for name, value in stored.items()}
    attributes = {unquote(name): value for name, value in values.items()}
    return Result(unquote(hit["id"]), -1, int(hit["distance"]), labels=labels, attributes=attributes)
