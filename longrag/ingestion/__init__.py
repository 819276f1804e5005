"""From documents to long units: links, sentences, chunks, grouping. No vectors here."""

from typing import TYPE_CHECKING

from longrag import lazily

if TYPE_CHECKING:
    from longrag.ingestion.builder import UnitBuilder
    from longrag.ingestion.chunking import chunk_spans
    from longrag.ingestion.grouping import group_documents
    from longrag.ingestion.key_kinds import KeyKind, make_keys
    from longrag.ingestion.keys_of import (
        Paragraph,
        paragraph_keys,
        paragraphs,
        sentence_keys,
        title_keys,
    )
    from longrag.ingestion.links import (
        CombinedLinkExtractor,
        DefaultLinkExtractor,
        HtmlLinkExtractor,
        LinkExtractor,
        MarkdownLinkExtractor,
        MetadataLinkExtractor,
        WikiLinkExtractor,
        link_extractor,
    )
    from longrag.ingestion.metadata import (
        ChunkMetadata,
        DescribedChunks,
        describe_chunks,
        described_text,
    )
    from longrag.ingestion.propositions import Propositions, proposition_keys
    from longrag.ingestion.relations import (
        CitationKeys,
        FolderHierarchy,
        LinkSource,
        SectionHierarchy,
        SharedEntities,
        TitleMentions,
    )
    from longrag.ingestion.resolving import LinkReport, LinkResolver, PrefixRule, resolve_links
    from longrag.ingestion.sentences import SentenceSplitter, split_sentences
    from longrag.ingestion.sources import read_documents
    from longrag.ingestion.units import build_units, chunk_unit, embedding_text, long_units
else:
    __getattr__, __dir__ = lazily(
        globals(),
        {
            "builder": "UnitBuilder",
            "chunking": "chunk_spans",
            "grouping": "group_documents",
            "key_kinds": "KeyKind make_keys",
            "keys_of": "Paragraph paragraph_keys paragraphs sentence_keys title_keys",
            "links": (
                "CombinedLinkExtractor DefaultLinkExtractor HtmlLinkExtractor LinkExtractor "
                "MarkdownLinkExtractor MetadataLinkExtractor WikiLinkExtractor link_extractor"
            ),
            "metadata": "ChunkMetadata DescribedChunks describe_chunks described_text",
            "propositions": "Propositions proposition_keys",
            "relations": (
                "CitationKeys FolderHierarchy LinkSource SectionHierarchy SharedEntities "
                "TitleMentions"
            ),
            "resolving": "LinkReport LinkResolver PrefixRule resolve_links",
            "sentences": "SentenceSplitter split_sentences",
            "sources": "read_documents",
            "units": "build_units chunk_unit embedding_text long_units",
        },
    )

__all__ = [
    "ChunkMetadata",
    "CitationKeys",
    "CombinedLinkExtractor",
    "DefaultLinkExtractor",
    "DescribedChunks",
    "FolderHierarchy",
    "HtmlLinkExtractor",
    "KeyKind",
    "LinkExtractor",
    "LinkReport",
    "LinkResolver",
    "LinkSource",
    "MarkdownLinkExtractor",
    "MetadataLinkExtractor",
    "Paragraph",
    "PrefixRule",
    "Propositions",
    "SectionHierarchy",
    "SentenceSplitter",
    "SharedEntities",
    "TitleMentions",
    "UnitBuilder",
    "WikiLinkExtractor",
    "build_units",
    "chunk_spans",
    "chunk_unit",
    "describe_chunks",
    "described_text",
    "embedding_text",
    "group_documents",
    "link_extractor",
    "long_units",
    "make_keys",
    "paragraph_keys",
    "paragraphs",
    "proposition_keys",
    "read_documents",
    "resolve_links",
    "sentence_keys",
    "split_sentences",
    "title_keys",
]
