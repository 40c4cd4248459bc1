// `cargo lab test observability/dashboards` compiles this file together with the dashboards: an unknown property, or an
// invalid value, for this release of Grafana is a type error.
import type { Dashboard, Panel, RowPanel } from '@grafana/schema';
import type * as stat from './node_modules/@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as table from './node_modules/@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as timeseries from './node_modules/@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// The JSON form of a type: values of an enum are their texts.
type Plain<T> = T extends string
  ? `${T}`
  : T extends number | boolean | null | undefined
    ? T
    : T extends object
      ? { [K in keyof T]: Plain<T[K]> }
      : T;

// A dashboard's schema permits any object for the options of a panel's plugin; the plugins have their own published schemas. Missing options have the
// plugin's defaults. Queries of Prometheus have no published schema.
type Defaults = NonNullable<NonNullable<Panel['fieldConfig']>['defaults']>;
type Of<Type extends string, Options, Custom> = Plain<Omit<Panel, 'type' | 'options' | 'fieldConfig'>> & {
  type: Type;
  options: Partial<Plain<Options>>;
  fieldConfig: { defaults: Plain<Omit<Defaults, 'custom'>> & { custom: Partial<Plain<Custom>> }; overrides: [] };
};
type Known =
  | Plain<RowPanel>
  | Of<'stat', stat.Options, {}>
  | Of<'table', table.Options, table.FieldConfig>
  | Of<'timeseries', timeseries.Options, timeseries.FieldConfig>;
type Checked = Omit<Plain<Dashboard>, 'panels'> & { panels: Known[] };
