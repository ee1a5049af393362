import { memo, useState } from "react";
import type { FileView } from "../chat/view";
import { Icon } from "../ui/icons";
import { words } from "../words";

const SHOWN = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

/** True for an address that the page may load: of its own server, or a file that was attached here. */
function isOwn(url: string): boolean {
  return url.startsWith("blob:") || (url.startsWith("/") && !url.startsWith("//"));
}

/** A file: images of the four kinds that are safe are shown, everything else is a tile to download. */
export const FileTile = memo(function FileTile({ file }: { file: FileView }) {
  const [isBroken, setBroken] = useState(false);
  const name = file.name || words.file;
  const isShown = SHOWN.has(file.mediaType) && isOwn(file.url) && !isBroken;
  const isOpenable = isOwn(file.url);
  return (
    <figure className="file">
      {isShown && <img src={file.url} alt={name} loading="lazy" onError={() => setBroken(true)} />}
      <figcaption>
        <Icon name={file.mediaType.startsWith("image/") ? "image" : "page"} />
        <span className="file-name" dir="auto">
          {name}
        </span>
        <span className="meta">{file.mediaType}</span>
        {isBroken && <span className="mark missing">{words.notDownloaded(name)}</span>}
        {isOpenable && (
          <a className="button quiet" href={file.url} download={file.name || ""}>
            <Icon name="download" /> {words.download}
          </a>
        )}
      </figcaption>
    </figure>
  );
});
