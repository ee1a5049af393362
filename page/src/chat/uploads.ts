// Attachments. Messages hold their `blob:` URLs; the bytes are read when the message is sent.
const files = new Map<string, Blob>();

export const MAX_FILE_BYTES = 32 * 1000 * 1000;

export interface Attachment {
  url: string;
  name: string;
  mediaType: string;
  /** Null for a file that is already on the server. */
  bytes: number | null;
}

export function attach(file: Blob, name: string): Attachment {
  const url = URL.createObjectURL(file);
  files.set(url, file);
  return { url, name, mediaType: file.type || "application/octet-stream", bytes: file.size };
}

export function blobOf(url: string): Blob | undefined {
  return files.get(url);
}

/** Convert a `blob:` URL to a `data:` URL. Other URLs are returned unchanged. */
export function dataUrl(url: string): Promise<string> {
  const file = files.get(url);
  if (!file) return Promise.resolve(url);
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
