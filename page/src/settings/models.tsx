import { api, type Model } from "../api";
import { byPlace, isThere } from "../tools/places";
import { words as pageWords } from "../words";
import { useLoaded } from "./loaded";
import { Problem } from "./problem";
import { settingsWords as words } from "./words";

export function ModelsPanel() {
  const { value, error, reload } = useLoaded(api.models);
  if (error) return <Problem text={error} onRetry={reload} />;
  if (!value) return <p className="muted">{pageWords.loading}</p>;
  return (
    <>
      <p className="muted">{words.modelsIntro}</p>
      <ul className="st-list">
        {value.models.map((model) => (
          <ModelRow key={model.name} model={model} />
        ))}
      </ul>
    </>
  );
}

function placeWords(place: string): string {
  if (place === "hosted") return words.hosts;
  return place === "here" ? words.runsHere : words.delegates(place.slice("by ".length));
}

function ModelRow({ model }: { model: Model }) {
  const tools = Object.entries(model.tools);
  const missing = tools.filter(([, where]) => !isThere(where));
  const places = [...new Set(tools.map(([, where]) => where).filter(isThere))].sort(byPlace);
  const marks = [model.default && words.standard, model.isAgent && words.agent].filter(Boolean).join(", ");
  return (
    <li className={model.available ? "st-item" : "st-item off"}>
      <h3>
        {model.label} <span className="meta">{model.providerLabel ?? model.provider}</span>
        {marks && <span className="st-mark">{marks}</span>}
      </h3>
      {!model.available && model.variable && <p className="st-warn">{words.needs(model.variable)}</p>}
      <p className="meta">
        {[
          model.context ? words.context(model.context) : null,
          model.price ? words.price(model.price.input, model.price.output) : words.priceUnknown,
          model.thinking.length ? words.thinking(model.thinking) : words.noThinking,
        ]
          .filter(Boolean)
          .join(" · ")}
      </p>
      {places.length === 0 && <p className="muted">{words.noTools}</p>}
      {places.map((place) => (
        <p key={place}>
          {placeWords(place)}:{" "}
          {tools
            .filter(([, where]) => where === place)
            .map(([tool]) => tool)
            .join(", ")}
        </p>
      ))}
      {places.length > 0 && missing.length > 0 && (
        <details>
          <summary>{words.lacks(missing.length)}</summary>
          <dl className="st-why">
            {missing.map(([tool, reason]) => (
              <div key={tool}>
                <dt>{tool}</dt>
                <dd>{reason}</dd>
              </div>
            ))}
          </dl>
        </details>
      )}
    </li>
  );
}
