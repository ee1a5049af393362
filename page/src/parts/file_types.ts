// Names of file types for people, and the size of a file.
import { useEffect, useState } from "react";
import { size } from "../format";

const NAMES: Record<string, string> = {
  "image/png": "PNG image",
  "image/jpeg": "JPEG image",
  "image/gif": "GIF image",
  "image/webp": "WebP image",
  "image/svg+xml": "SVG image",
  "text/plain": "Text",
  "text/csv": "CSV table",
  "text/tab-separated-values": "TSV table",
  "text/markdown": "Markdown",
  "text/html": "HTML page",
  "text/x-python": "Python code",
  "text/javascript": "JavaScript code",
  "application/json": "JSON",
  "application/x-ndjson": "JSON lines",
  "application/xml": "XML",
  "application/yaml": "YAML",
  "application/pdf": "PDF document",
  "application/zip": "ZIP archive",
  "application/gzip": "GZIP archive",
  "application/msword": "Word document",
  "application/vnd.ms-excel": "Excel workbook",
  "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "Word document",
  "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "Excel workbook",
  "application/vnd.openxmlformats-officedocument.presentationml.presentation": "PowerPoint presentation",
  "application/vnd.apache.parquet": "Parquet table",
  "audio/mpeg": "MP3 audio",
  "audio/wav": "WAV audio",
  "video/mp4": "MP4 video",
};
const FAMILIES: Record<string, string> = { image: "image", audio: "audio", video: "video", font: "font" };

/** Describe a media type: `PNG image`. An unknown one is named after the file's extension. */
export function typeName(mediaType: string, name: string): string {
  const type = mediaType.split(";")[0]!.trim().toLowerCase();
  const known = NAMES[type];
  if (known) return known;
  const extension = /\.([a-z0-9]{1,8})$/i.exec(name)?.[1]?.toUpperCase();
  const [family = "", own = ""] = type.split("/");
  const kind = FAMILIES[family];
  if (kind) return `${own.replace(/^x-/, "").slice(0, 8).toUpperCase()} ${kind}`;
  return extension ? `${extension} file` : "File";
}

const sizes = new Map<string, Promise<number | null>>();

/** Ask the server for the size of a file, without its content. */
function sizeOf(url: string): Promise<number | null> {
  let found = sizes.get(url);
  if (!found) {
    found = fetch(url, { method: "HEAD" }).then(
      (response) => (response.ok ? Number(response.headers.get("content-length")) || null : null),
      () => null,
    );
    sizes.set(url, found);
  }
  return found;
}

/** Return a file's size for display. Null while it is unknown. */
export function useFileSize(url: string, isOwn: boolean): string | null {
  const [bytes, setBytes] = useState<number | null>(null);
  useEffect(() => {
    if (!isOwn || url.startsWith("blob:")) return;
    let isMounted = true;
    void sizeOf(url).then((found) => isMounted && setBytes(found));
    return () => {
      isMounted = false;
    };
  }, [url, isOwn]);
  return bytes === null ? null : size(bytes);
}
